"""The latency of messages beside large work of the node: p99 and the longest.

5,000 messages/s are published and consumed as in `latency`. Meanwhile the node does one large piece of work over and
over: an import, a list, a scrape, tens of thousands of channels, declared and deleted queues, returned messages, a
message for all of many queues, or the end of a connection with many consumers. In a node that does not divide such work
it is one step of the event loop, and so a pause for all clients.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import httpx
from pamqp import body, commands, frame, header

from bench.client import CHANNEL, LOOPBACK, Connection, LoadError
from bench.contenders import LEVERET, RABBITMQ, Node
from bench.load import ConsumeJob, PublishJob
from bench.management import GUEST, TIMEOUT_S, call
from bench.queues import definitions
from bench.rows import LATENCY_RATE, WINDOW, Reading, Row, Scenario, Settings
from bench.workers import QUEUE, together

QUEUES: Final = 10_000
QUICK_QUEUES: Final = 300
OPENS: Final = 50_000
_ANSWER_BYTES: Final = 12 + 16
"""The octets of a close-ok and an open-ok."""
_ENDS_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.05
_RETURNS: Final = "returns"
_FANOUT: Final = "amq.fanout"
_PRIORITIES: Final = 5
_BODY: Final = b"." * 16
_FRAMES_OF_DELIVERY: Final = 3

Stopped = Callable[[], bool]
Disturbance = Callable[[Node, int, Stopped], None]


def _import(node: Node, count: int, stopped: Stopped) -> None:
    call(node, "POST", "/api/definitions", definitions(count, vhost="beside", exchange="amq.direct"))
    call(node, "DELETE", "/api/vhosts/beside")
    _make_vhost(node)


def _list(node: Node, count: int, stopped: Stopped) -> None:
    call(node, "GET", "/api/queues")


def _scrape(node: Node, count: int, stopped: Stopped) -> None:
    call(node, "GET", "/metrics/per-object")


def _open_channels(node: Node, count: int, stopped: Stopped) -> None:
    """Close and open a channel 50,000 times, without a wait for the answers in between."""
    connection = Connection(node.amqp_port)
    close = commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
    again = frame.marshal(close, CHANNEL) + frame.marshal(commands.Channel.Open(), CHANNEL)
    sender = threading.Thread(target=connection.socket.sendall, args=(again * OPENS,), daemon=True)
    sender.start()
    missing = OPENS * _ANSWER_BYTES
    while missing > 0:
        octets = connection.socket.recv(1 << 20)
        if not octets:
            raise LoadError("the broker ended the connection that opened channels")
        missing -= len(octets)
    sender.join()
    connection.close()


def _declare_and_delete(node: Node, count: int, stopped: Stopped) -> None:
    with httpx.Client(
        base_url=f"http://{LOOPBACK}:{node.management_port}/api/queues/beside/",
        auth=GUEST,
        timeout=TIMEOUT_S,
    ) as client:
        for number in range(count):
            if stopped():
                return
            client.put(f"come-{number}", json={"durable": True}).raise_for_status()
            client.delete(f"come-{number}").raise_for_status()


def _return_messages(node: Node, count: int, stopped: Stopped) -> None:
    """Close a connection that holds messages of five priorities, published in turns; all return to the queue.

    The queue delivered them by priority, so no two neighbours in the queue were delivered one after the other.
    """
    connection = Connection(node.amqp_port, vhost="beside")
    connection.declare_queue(_RETURNS, arguments={"x-max-priority": _PRIORITIES - 1})
    if not connection.ready_messages(_RETURNS):
        for number in range(count):
            connection.socket.sendall(_prioritised(number))
    while connection.ready_messages(_RETURNS) < count:
        time.sleep(_POLL_S)
    connection.consume(_RETURNS, prefetch=0)
    connection.skip_frames(count * _FRAMES_OF_DELIVERY)
    connection.close()


def _prioritised(number: int) -> bytes:
    properties = commands.Basic.Properties(
        delivery_mode=2, priority=number % _PRIORITIES, message_id=str(number)
    )
    return _published(commands.Basic.Publish(routing_key=_RETURNS), properties)


def _published(method: commands.Basic.Publish, properties: commands.Basic.Properties) -> bytes:
    parts = (
        method,
        header.ContentHeader(body_size=len(_BODY), properties=properties),
        body.ContentBody(_BODY),
    )
    return b"".join(frame.marshal(each, CHANNEL) for each in parts)


def _fan_out(node: Node, count: int, stopped: Stopped) -> None:
    """Publish one message to all queues, and wait for its confirm."""
    connection = Connection(node.amqp_port, vhost="beside")
    connection.confirm_select()
    method = commands.Basic.Publish(exchange=_FANOUT)
    connection.socket.sendall(_published(method, commands.Basic.Properties(delivery_mode=2)))
    connection.skip_frames(1)
    connection.close()


def _close_consumers(node: Node, count: int, stopped: Stopped) -> None:
    """Close a connection that has a consumer on each of many queues."""
    connection = Connection(node.amqp_port, vhost="beside")
    queues = [each["name"] for each in definitions(count)["queues"]]
    connection.consume_each({queue: queue for queue in queues}, prefetch=1)
    connection.close()


def _make_vhost(node: Node) -> None:
    call(node, "PUT", "/api/vhosts/beside", {})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    call(node, "PUT", "/api/permissions/beside/guest", everything)


class _Disturber(threading.Thread):
    """Does the work over and over until `end`."""

    def __init__(self, node: Node, disturb: Disturbance, count: int) -> None:
        super().__init__(daemon=True)
        self._work = (node, disturb, count)
        self._ends = threading.Event()
        self.times = 0
        self.error: Exception | None = None

    def run(self) -> None:
        node, disturb, count = self._work
        try:
            while not self._ends.is_set():
                disturb(node, count, self._ends.is_set)
                self.times += 1
        except (LoadError, OSError, httpx.HTTPError) as error:
            self.error = error

    def end(self) -> int:
        """Stop; return the number of completed repetitions.

        Raises:
            LoadError: the work failed, or does not end.
        """
        self._ends.set()
        self.join(TIMEOUT_S + _ENDS_WITHIN_S)
        if self.error is not None or self.is_alive():
            raise LoadError(f"beside the messages: {self.error or 'it does not end'}")
        return self.times


def _beside(
    name: str, disturb: Disturbance, *, standing: bool
) -> Callable[[Node, Settings], dict[str, Reading]]:
    """Return the run of a scenario; `standing` declares all queues before it."""

    def run(node: Node, settings: Settings) -> dict[str, Reading]:
        count = QUICK_QUEUES if settings.quick else QUEUES
        _make_vhost(node)
        if standing:
            call(node, "POST", "/api/definitions", definitions(count, vhost="beside", exchange=_FANOUT))
        port = node.amqp_port
        job = PublishJob(port, QUEUE, window=WINDOW, seconds=settings.seconds, rate=LATENCY_RATE)
        consume = ConsumeJob(port, QUEUE, ack_every=1, stamped=True, warmup_s=settings.warmup_s)
        disturber = _Disturber(node, disturb, count)
        disturber.start()
        try:
            ages_us = together(node, job, consume, settings.warmup_s).ages_us
        finally:
            times = disturber.end()
            call(node, "DELETE", "/api/vhosts/beside")
        details = {**ages_us, "times": float(times)}
        return {
            f"beside-{name}-{each}": Reading(ages_us[each] / 1000, details=details) for each in ("p99", "max")
        }

    return run


def _scenario(
    name: str,
    what: str,
    disturb: Disturbance,
    *,
    standing: bool = False,
    brokers: tuple[str, ...] = (LEVERET, RABBITMQ),
) -> Scenario:
    shown: Mapping[str, str] = {"p99": "p99", "max": "longest"}
    rows = tuple(
        Row(f"beside-{name}-{each}", f"latency at {LATENCY_RATE:,}/s beside {what}, {title}", "ms", False)
        for each, title in shown.items()
    )
    return Scenario(rows, _beside(name, disturb, standing=standing), brokers=brokers)


BESIDE: Final = (
    _scenario("import", f"imports of {QUEUES:,} queues and deletions of their vhost", _import),
    _scenario("list", f"`GET /api/queues` of {QUEUES:,} queues", _list, standing=True),
    # RabbitMQ has the scrape in a plugin, on a port of its own.
    _scenario(
        "scrape", f"`/metrics/per-object` of {QUEUES:,} queues", _scrape, standing=True, brokers=(LEVERET,)
    ),
    _scenario("channels", f"{OPENS:,} pipelined `channel.close` and `open`", _open_channels),
    _scenario("declare", "queues declared and deleted over HTTP", _declare_and_delete),
    _scenario("returns", f"{QUEUES:,} messages of {_PRIORITIES} priorities that come back", _return_messages),
    _scenario("fanout", f"a publish that reaches {QUEUES:,} queues", _fan_out, standing=True),
    _scenario(
        "close",
        f"the end of a connection with consumers of {QUEUES:,} queues",
        _close_consumers,
        standing=True,
    ),
)
