"""After a restart a message that may have been delivered says so, and one that was not says so where that is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pamqp import commands

from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.rabbitmq import RabbitNode
from tests.conformance.brokers import LEVERET, RABBITMQ
from tests.conformance.conftest import kind_of
from tests.conformance.rawclient import Peer

QUEUE: Final = "flights"
TAKEN: Final = 3
BODIES: Final = [b"%d" % number for number in range(8)]
Process = LeveretProcess | RabbitNode


@pytest.fixture(
    params=[
        pytest.param(RABBITMQ, marks=[pytest.mark.rabbitmq, pytest.mark.xdist_group("rabbitmq")]),
        pytest.param(LEVERET, marks=pytest.mark.xdist_group("leveret")),
    ]
)
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Process]:
    """A broker of the test's own, which it may kill."""
    made = RabbitNode() if kind_of(request) == RABBITMQ else LeveretProcess(tmp_path / "data")
    with made as one:
        yield one


def held(peer: Peer, arguments: dict[str, Any]) -> None:
    """Publish, confirmed, and take some without settling them."""
    declare = commands.Queue.Declare(queue=QUEUE, durable=True, arguments=arguments)
    peer.call(1, declare, commands.Queue.DeclareOk)
    peer.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    confirmed = 0
    for body in BODIES:
        peer.publish(1, body, routing_key=QUEUE, properties=commands.Basic.Properties(delivery_mode=2))
    while confirmed < len(BODIES):
        confirmed = max(confirmed, peer.expect(1, commands.Basic.Ack).delivery_tag)
    for body in BODIES[:TAKEN]:
        assert take(peer)[0] == body


def take(peer: Peer) -> tuple[bytes, bool]:
    """The next message, and whether it is told as redelivered."""
    ok = peer.call(1, commands.Basic.Get(queue=QUEUE), commands.Basic.GetOk)
    return peer.expect_content(1), bool(ok.redelivered)


def connected(process: Process) -> Peer:
    """A raw connection with channel 1 open."""
    peer = Peer(process.amqp_port)
    peer.login()
    peer.open_channel(1)
    return peer


def ended(process: Process, end: str, arguments: dict[str, Any]) -> list[bool]:
    """What is told as redelivered once the broker has ended so and is there again."""
    with connected(process) as peer:
        held(peer, arguments)
        how: Callable[[], object] = getattr(process, end)
        how()
    process.start()
    with connected(process) as peer:
        found = [take(peer) for _ in BODIES]
    assert [body for body, _ in found] == BODIES
    return [redelivered for _, redelivered in found]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_was_handed_out_before_a_stop_is_redelivered_and_nothing_else(
    process: Process, kind: str
) -> None:
    found = ended(process, "stop", {"x-queue-type": kind})
    assert found == [True] * TAKEN + [False] * (len(BODIES) - TAKEN)


def test_after_a_crash_nobody_knows_and_all_is_redelivered(process: Process) -> None:
    assert ended(process, "kill9", {}) == [True] * len(BODIES)
