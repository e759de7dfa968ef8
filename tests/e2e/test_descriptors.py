"""A node with few file descriptors, and strangers who open all the connections that they can, on every port at once."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pika
import pytest

from leveret.core.rules.descriptors import LEAST, ListenerKind
from leveret.management.http.socket_path import CONTROL_SOCKET
from leveret.testing.network.ports import LOOPBACK, free_ports, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.certificates import CertificateAuthority, available

PATIENCE_S: Final = 30.0
STRANGER: Final = "127.0.0.2"
QUEUES: Final = 40
AUTHORIZED: Final = {"Authorization": f"Basic {b64encode(b'guest:guest').decode()}"}


class Flooded:
    """A node with a port of every kind, and strangers who say nothing."""

    def __init__(self, open_files_max: int, folder: Path) -> None:
        ports = free_ports(4)
        self.metrics_port, amqps, https, replication = ports
        secret = CertificateAuthority(folder).issue("server", names="DNS:localhost").settings()
        config = {
            "listeners.ssl.default": f"{LOOPBACK}:{amqps}",
            "management.ssl.port": str(https),
            "prometheus.tcp.port": str(self.metrics_port),
            "replication.bind": LOOPBACK,
            "replication.port": str(replication),
            **secret,
            **{key.replace("ssl_options", "management.ssl"): value for key, value in secret.items()},
        }
        self.node = LeveretProcess(config=config, parent_dir=folder, open_files_max=open_files_max)
        self.ports = (self.node.amqp_port, self.node.stream_port, self.node.management_port, *ports)
        self._strangers: list[socket.socket] = []

    def flood(self, count: int) -> None:
        """So many connections to each port, and to the control socket, all at once."""
        for _ in range(count):
            for port in self.ports:
                with suppress(OSError):
                    self._strangers.append(
                        socket.create_connection((LOOPBACK, port), 10, source_address=(STRANGER, 0))
                    )
            control = socket.socket(socket.AF_UNIX)
            with suppress(OSError):
                control.settimeout(10)
                control.connect(str(self.node.data_dir / CONTROL_SOCKET))
            self._strangers.append(control)

    def leave(self) -> None:
        for stranger in self._strangers:
            stranger.close()
        self._strangers.clear()

    def get(self, path: str) -> str:
        """Its own connection before this one may still be there, and take the only place that strangers leave."""
        url = f"http://{LOOPBACK}:{self.node.management_port}{path}"
        answers: list[str] = []

        def is_answered() -> bool:
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(url, headers=AUTHORIZED), timeout=10
                ) as answer:
                    answers.append(answer.read().decode())
            except ConnectionError:
                return False
            except urllib.error.URLError as error:
                if isinstance(error.reason, ConnectionError):
                    return False
                raise
            return True

        wait_until(is_answered, f"an answer to {path}", PATIENCE_S)
        return answers[0]

    def has_alarm(self) -> bool:
        try:
            self.get("/api/health/checks/alarms")
        except urllib.error.HTTPError as error:
            alarms = json.loads(error.read())["alarms"]
            assert {each["resource"] for each in alarms} == {"file_descriptor_limit"}
            return True
        return False

    def connections(self) -> dict[str, int]:
        """How many each kind of listener has, without those that have none."""
        pattern = r'^leveret_listener_connections\{listener="(\w+)"\} (\d+)$'
        found = re.findall(pattern, self.get("/metrics"), re.MULTILINE)
        assert len(found) == len(ListenerKind)
        return {name: int(count) for name, count in found if int(count)}

    def metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics"), re.MULTILINE)
        assert found is not None, name
        return float(found[1])


@pytest.fixture
def flooded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Flooded]:
    if available() is not None:
        pytest.skip(str(available()))
    found = Flooded(request.param, tmp_path)
    try:
        found.node.start()
        yield found
    finally:
        found.leave()
        found.node.close()


def connect(node: LeveretProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port, socket_timeout=20))


def publish_to_all(channel: pika.adapters.blocking_connection.BlockingChannel, body: str) -> None:
    """Returns once all are confirmed; raises if one is not."""
    for number in range(QUEUES):
        properties = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", f"q{number}", body.encode(), properties, mandatory=True)


@pytest.mark.story
@pytest.mark.parametrize("flooded", [LEAST, 1024], indirect=True)
def test_served_clients_go_on_while_every_port_is_flooded(flooded: Flooded) -> None:
    node = flooded.node
    limit = node.open_files_max
    assert limit is not None
    with connect(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(QUEUES):
            channel.queue_declare(f"q{number}", durable=True)
        publish_to_all(channel, "before")
        flooded.flood(max(100, limit // 4))
        assert flooded.has_alarm()
        assert "alarm_in_effect resources=file_descriptor_limit" in node.log_text()
        assert flooded.metric("rabbitmq_alarms_file_descriptor_limit") == 1
        assert flooded.metric("rabbitmq_process_max_fds") == limit
        assert flooded.metric("rabbitmq_process_open_fds") <= limit
        refused = [
            flooded.metric(f'leveret_connections_refused_total{{listener="amqp",reason="{reason}"}}')
            for reason in ("address", "share")
        ]
        assert sum(refused) > 0
        for turn in range(20):
            publish_to_all(channel, f"during {turn}")
            method, _, body = channel.basic_get("q0", auto_ack=True)
            assert method is not None
            assert body == (b"before" if not turn else f"during {turn - 1}".encode())
        # The node looks at itself every second and samples its rates every five, with nothing to spare.
        flooded.leave()
        wait_until(lambda: not flooded.has_alarm(), "the end of the alarm", PATIENCE_S)
        # The one that publishes, and the one that asks.
        wait_until(
            lambda: flooded.connections() == {"amqp": 1, "http": 1}, "who left is not counted", PATIENCE_S
        )
        publish_to_all(channel, "after")
        assert node.ctl("list_queues", "name", "messages").returncode == 0
        with connect(node) as another:
            another.channel().queue_declare("q1", passive=True)
    log = node.log_text()
    assert not re.findall(r".*(?:action=stop|Traceback|append_failed|fdatasync_waits|level=critical).*", log)
    node.kill9()
    node.start()
    with connect(node) as connection:
        channel = connection.channel()
        counts = [
            channel.queue_declare(f"q{number}", passive=True).method.message_count for number in range(QUEUES)
        ]
    # One of q0 was taken each turn, and an automatic acknowledgement may not have been on disk.
    assert 2 <= counts[0] <= 22
    assert counts[1:] == [22] * (QUEUES - 1)


@pytest.mark.story
def test_more_queues_than_descriptors_are_written_at_once_and_all_confirms_are_true(tmp_path: Path) -> None:
    """A fanout opens a segment of each; what is closed for want of descriptors was synced before."""
    with LeveretProcess(parent_dir=tmp_path, open_files_max=LEAST) as node:
        with connect(node) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(300):
                channel.queue_declare(f"q{number}", durable=True)
                channel.queue_bind(f"q{number}", "amq.fanout")
            for turn in range(5):
                properties = pika.BasicProperties(delivery_mode=2)
                channel.basic_publish("amq.fanout", "", str(turn).encode(), properties, mandatory=True)
        assert not re.findall(r".*(?:action=stop|Traceback|failed|level=critical).*", node.log_text())
        node.kill9()
        node.start()
        with connect(node) as connection:
            channel = connection.channel()
            for number in range(300):
                assert channel.queue_declare(f"q{number}", passive=True).method.message_count == 5


def test_a_node_that_cannot_have_enough_descriptors_says_how_many_it_needs(tmp_path: Path) -> None:
    node = LeveretProcess(parent_dir=tmp_path, open_files_max=LEAST - 1)
    with ExitStack() as stack:
        stack.callback(node.close)
        node.launch()
        wait_until(lambda: not node.alive, "the end of the node", PATIENCE_S)
        assert f"a node needs at least {LEAST}" in node.log_text()


def test_one_address_has_no_more_connections_than_the_setting_allows(tmp_path: Path) -> None:
    with LeveretProcess(parent_dir=tmp_path, config={"connection_max_per_address": "2"}) as node:
        for port in (node.amqp_port, node.stream_port):
            with ExitStack() as stack:
                strangers = [
                    stack.enter_context(
                        socket.create_connection((LOOPBACK, port), 10, source_address=(STRANGER, 0))
                    )
                    for _ in range(3)
                ]
                assert strangers[2].recv(1) == b"", "the third is closed at once"
                # Others are served, and so are they when one has gone.
                stack.enter_context(socket.create_connection((LOOPBACK, port), 10))
                strangers[0].close()
                wait_until(partial(_is_let_in, port), "a place for one more", PATIENCE_S)
        with connect(node):
            pass


def _is_let_in(port: int) -> bool:
    """Whether one more of the stranger's connections stays open."""
    with socket.create_connection((LOOPBACK, port), 10, source_address=(STRANGER, 0)) as one:
        one.settimeout(0.3)
        with suppress(TimeoutError):
            return one.recv(1) != b""
    return True
