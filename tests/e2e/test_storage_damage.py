"""What a node does with a log that is not as it was written: cut what is torn, report all else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from leveret.testing.applications.applications import channel_of, parameters
from leveret.testing.network.ports import NotReady
from leveret.testing.servers.broker import LeveretProcess

COUNT: Final = 300
BODIES: Final = [b"%06d" % number + b"." * 1000 for number in range(COUNT)]
CONFIG: Final = {"segment_bytes_max": "65536"}
PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)
PATIENCE_S: Final = 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed node left: messages in queues `damaged` (several segments) and `healthy`."""
    directory = tmp_path_factory.mktemp("damage") / "data"
    with LeveretProcess(directory, CONFIG) as one:
        with channel(one) as opened:
            for name, bodies in (("damaged", BODIES), ("healthy", BODIES[:10])):
                opened.queue_declare(name, durable=True)
                for body in bodies:
                    opened.basic_publish("", name, body, PERSISTENT)
        one.kill9()
    return directory


@pytest.fixture
def node(data: Path, tmp_path: Path) -> Iterator[LeveretProcess]:
    """A node that does not run, with a copy of that data."""
    shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("*.sock"))
    one = LeveretProcess(tmp_path / "data", CONFIG)
    try:
        yield one
    finally:
        one.close()


def channel(node: LeveretProcess) -> AbstractContextManager[BlockingChannel]:
    """A channel in confirm mode."""
    return channel_of(pika.BlockingConnection(parameters(node.amqp_port, "/")))


def segments(node: LeveretProcess) -> list[Path]:
    """The segments of queue `damaged`: the log with the most of them."""
    logs = [sorted(log.glob("*.segment*")) for log in (node.data_dir / "queues").iterdir()]
    found = max(logs, key=len)
    assert len(found) >= 4
    return found


def drain(node: LeveretProcess, name: str) -> list[bytes]:
    with channel(node) as opened:
        got: list[bytes] = []
        while (answer := opened.basic_get(name, auto_ack=True))[0] is not None:
            got.append(answer[2])
        return got


def refusal(node: LeveretProcess, name: str) -> tuple[int, str]:
    """Reply code and text with which the node refuses to serve a queue."""
    with channel(node) as opened, pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        opened.queue_declare(name, passive=True)
    return caught.value.reply_code, caught.value.reply_text


def flip(path: Path, byte: int) -> bytes:
    octets = bytearray(path.read_bytes())
    octets[byte] ^= 0x10
    path.write_bytes(octets)
    return bytes(octets)


def assert_down(node: LeveretProcess, segment: Path, octets: bytes) -> None:
    """Queue `damaged` is down and says why, its file is as it was, and the other queue is served."""
    code, text = refusal(node, "damaged")
    assert code == 404
    assert text.startswith(f"NOT_FOUND - queue 'damaged' in vhost '/' is down: log {segment.parent}")
    assert "queue_down vhost=/ queue=damaged" in node.log_text()
    with channel(node) as opened, pytest.raises(pika.exceptions.NackError):
        opened.basic_publish("", "damaged", b"more", PERSISTENT)
    assert segment.read_bytes() == octets
    assert drain(node, "healthy") == BODIES[:10]


@pytest.mark.parametrize("cut", [1, 700, 20_000])
def test_a_truncated_last_segment_is_cut_at_its_last_whole_chunk_and_served(
    node: LeveretProcess, cut: int
) -> None:
    last = segments(node)[-1]
    os.truncate(last, max(0, last.stat().st_size - cut))
    node.start()
    assert "torn_tail_cut vhost=/ queue=damaged" in node.log_text()
    with channel(node) as opened:
        opened.basic_publish("", "damaged", b"after", PERSISTENT)
    got = drain(node, "damaged")
    assert got == [*BODIES[: len(got) - 1], b"after"]
    assert COUNT - len(got) + 1 <= 1 + cut // 1000
    assert drain(node, "healthy") == BODIES[:10]


def test_a_tail_of_zeros_is_cut_and_nothing_before_it_is_lost(node: LeveretProcess) -> None:
    last = segments(node)[-1]
    os.truncate(last, last.stat().st_size + 5000)
    node.start()
    assert drain(node, "damaged") == BODIES


def test_a_flipped_bit_takes_its_queue_down_until_the_segment_is_restored(node: LeveretProcess) -> None:
    segment = segments(node)[1]
    intact = segment.read_bytes()
    octets = flip(segment, len(intact) // 2)
    node.start()
    assert_down(node, segment, octets)
    logged = next(line for line in node.log_text().splitlines() if "queue_down" in line)
    for part in (f"log {segment.parent}", f"segment {segment.name}", "at byte", "(offset"):
        assert part in logged
    node.kill9()
    segment.write_bytes(intact)
    node.start()
    assert drain(node, "damaged") == BODIES


@pytest.mark.parametrize("which", ["truncated", "missing"])
def test_a_middle_segment_that_is_not_whole_takes_its_queue_down(node: LeveretProcess, which: str) -> None:
    _, middle, after, *_ = segments(node)
    if which == "missing":
        middle.unlink()
    else:
        os.truncate(middle, middle.stat().st_size - 10)
    node.start()
    assert_down(node, after, after.read_bytes())


def test_an_operator_can_delete_a_queue_that_is_down_and_an_application_cannot(node: LeveretProcess) -> None:
    flip(segments(node)[0], 60)
    node.start()
    with channel(node) as opened, pytest.raises(pika.exceptions.ChannelClosedByBroker, match="is down"):
        opened.queue_delete("damaged")
    node.ctl("delete_queue", "damaged")
    with channel(node) as opened:
        opened.queue_declare("damaged", durable=True)
        opened.basic_publish("", "damaged", b"new", PERSISTENT)
    node.kill9()
    node.start()
    assert drain(node, "damaged") == [b"new"]


def failed(node: LeveretProcess, *args: str) -> str:
    """What leveretctl says of why it does not."""
    ended = node.ctl(*args, check=False)
    assert ended.returncode != 0
    return ended.stderr


def bindings(node: LeveretProcess) -> str:
    """Of queue `damaged`, as operators see them."""
    return node.ctl(
        "list_bindings", "source_name", "destination_name", "routing_key", "--no-table-headers"
    ).stdout


@pytest.mark.parametrize(
    "harm",
    [
        "flipped",
        "all-gone",
        *(pytest.param(harm, marks=pytest.mark.story) for harm in ("oldest-gone", "directory-gone")),
    ],
)
def test_an_operator_restarts_a_crashed_queue_knowing_what_is_given_up(
    node: LeveretProcess, harm: str
) -> None:
    node.start()
    with channel(node) as opened:
        # It goes with its last binding, and stays as long as there is one.
        opened.exchange_declare("bound", "fanout", durable=True, auto_delete=True)
        opened.queue_bind("damaged", "bound")
        method = opened.basic_get("damaged")[0]
        assert method is not None
        opened.basic_ack(method.delivery_tag)
    bound = bindings(node)
    assert "bound" in bound
    assert "is not crashed" in failed(node, "restart_queue", "damaged", "--yes")
    node.kill9()
    files = segments(node)
    log = files[0].parent
    if harm == "flipped":
        flip(files[1], 60)
    elif harm == "directory-gone":
        shutil.rmtree(log)
    else:
        for file in files[: 1 if harm == "oldest-gone" else None]:
            file.unlink()
    node.start()
    refused = failed(node, "restart_queue", "damaged")
    assert "is crashed" in refused
    assert "give_up=true" in refused
    shown = json.loads(node.ctl("restart_queue", "damaged", "--dry-run", "--formatter", "json").stdout)
    (copy,) = shown["copies"]
    gone = harm in ("all-gone", "directory-gone")
    assert copy["state"] == ("missing" if gone else "damaged")
    assert copy["messages"] == 0 if gone else 200 <= copy["messages"] < COUNT
    with channel(node) as opened, pytest.raises(pika.exceptions.NackError):
        opened.basic_publish("", "damaged", b"more", PERSISTENT)

    given_up = json.loads(node.ctl("restart_queue", "damaged", "--yes", "--formatter", "json").stdout)
    assert given_up == shown
    assert not log.exists()
    with channel(node) as opened:
        opened.basic_publish("bound", "", b"new", PERSISTENT)
    node.kill9()
    node.start()
    assert bindings(node) == bound
    assert drain(node, "damaged") == [b"new"]
    assert drain(node, "healthy") == BODIES[:10]
    quarantined = json.loads(node.ctl("list_divergent_messages", "--formatter", "json").stdout)
    assert len(quarantined["reports"]) == (0 if gone else 1)
    assert copy["messages"] == sum(row["settled"] is False for row in quarantined["messages"])


def test_a_bit_that_flips_under_a_running_node_ends_the_queues_consumers_and_nothing_else(
    node: LeveretProcess,
) -> None:
    node.start()
    segment = segments(node)[2]
    octets = flip(segment, segment.stat().st_size // 2)
    with channel(node) as opened:
        got: list[bytes] = []
        cancelled: list[Any] = []
        opened.add_on_cancel_callback(cancelled.append)
        opened.basic_consume("damaged", lambda _, method, properties, body: got.append(body), auto_ack=True)
        opened.connection.call_later(PATIENCE_S, opened.stop_consuming)
        while opened._consumer_infos and not cancelled:
            opened.connection.process_data_events(1)
        assert cancelled
    assert got == BODIES[: len(got)]
    # All before the damaged chunk, which is in the third segment, is delivered.
    assert 2 * 60 < len(got) < 3 * 66
    assert_down(node, segment, octets)


def test_damaged_definitions_stop_the_start_with_their_place_and_are_left_alone(node: LeveretProcess) -> None:
    (segment,) = (node.data_dir / "definitions").glob("*.segment")
    intact = segment.read_bytes()
    octets = flip(segment, 60)
    with pytest.raises(NotReady) as caught:
        node.start()
    assert "Traceback" not in str(caught.value)
    for part in (f"log {segment.parent}", f"segment {segment.name}", "byte 0"):
        assert part in str(caught.value)
    assert node.server.exit_status not in (0, None)
    assert segment.read_bytes() == octets
    segment.write_bytes(intact)
    node.start()
    assert drain(node, "damaged") == BODIES
