"""What a reader of an upstream makes of endpoints and gaps; the rest is in tests/e2e/test_stream_listener.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest

from leveret.model.errors import InvalidCommand, PreconditionFailed, StorageError
from leveret.pipeline.upstream.stream_client import (
    GapError,
    RecoveryPublisher,
    StreamClient,
    UpstreamUnreachable,
    connect,
    parse_endpoint,
)
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.chunk import decode_header
from leveret.wire.record import OUTGOING_STREAM
from leveret.wire.stream.codec import StreamCommand
from leveret.wire.stream.commands import Heartbeat, PublishConfirm, PublishError
from leveret.wire.stream.fields import FailedPublish
from leveret.wire.stream.publish import MessageRun


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [("a.example:5552", ("a.example", 5552)), ("[::1]:5552", ("::1", 5552)), ("10.0.0.1:1", ("10.0.0.1", 1))],
)
def test_an_endpoint_is_host_and_port(text: str, endpoint: tuple[str, int]) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":5552", "host:port", "host:-1", "host:0", "host:65536"]
)
def test_an_endpoint_without_host_or_port_is_named(text: str) -> None:
    with pytest.raises(InvalidCommand, match=f"'{text}' is not host:port"):
        parse_endpoint(text)


def test_a_port_of_thousands_of_digits_is_refused_like_any_other() -> None:
    with pytest.raises(InvalidCommand, match="is not host:port"):
        parse_endpoint("host:" + "9" * 5_000)


def test_an_empty_list_of_endpoints_is_unreachable() -> None:
    with pytest.raises(UpstreamUnreachable, match="the list is empty"):
        connect([], vhost="/", username="u", password="p")


def test_a_gap_names_its_bounds_and_what_to_do() -> None:
    text = str(GapError("s", 3, 10))
    assert text.startswith("stream s: offsets 3 to 9 are gone, the first one retained is 10; ")
    assert "delete_all_data_on_standby_replication_cluster here" in text


def test_chunks_that_do_not_follow_each_other_are_a_gap_and_what_came_before_is_kept() -> None:
    upstream = StandbyUpstream()
    for _ in range(3):
        upstream.publish("/", "q", [stored_message(b"m")] * 10)
    log = upstream.logs["/"]
    for column in (log._ids, log._chunks, log._stamps):
        del column[1]
    with (
        upstream.serving() as port,
        connect([("127.0.0.1", port)], vhost="/", username="standby", password="secret") as client,
    ):
        chunks = client.fetch(OUTGOING_STREAM, 0, 30)
        assert decode_header(next(chunks)).chunk_id == 0
        with pytest.raises(GapError) as gap:
            next(chunks)
    assert (gap.value.first_missing, gap.value.first_retained) == (10, 20)


class Confirming:
    """A connection on which the confirms of runs, by their last ids, come one after the other."""

    def __init__(self, order: Sequence[int]) -> None:
        self.left = deque(order)
        self.publisher: RecoveryPublisher

    def await_command(self, kind: object) -> None:
        self.publisher.confirmed([self.left.popleft()])

    def send(self, *octets: object) -> None:
        """Store what is sent, some time."""

    def set_timeout(self, timeout_s: float | None = None) -> None:
        """Wait for ever."""


@pytest.mark.parametrize("order", [*permutations((1, 4, 5))])
@pytest.mark.parametrize("up_to", range(1, 6))
def test_what_is_waited_for_is_confirmed_whole_in_whatever_order_confirms_come(
    order: tuple[int, ...], up_to: int
) -> None:
    connection: Any = Confirming(order)
    publisher = connection.publisher = RecoveryPublisher(connection, 1, 0, lambda: None)
    for first, last in ((1, 1), (2, 4), (5, 5)):
        publisher.publish(MessageRun.of(first, [b"x"] * (last + 1 - first)))
    publisher.wait_confirmed(up_to, 5.0)
    needed = {last for first, last in ((1, 1), (2, 4), (5, 5)) if first <= up_to}
    came = len(order) - len(connection.left)
    assert needed <= {*order[:came]}
    assert not needed <= {*order[: came - 1]}, "no longer than it has to"


class Appending(Confirming):
    """A connection to a node that appends a segment's messages, and confirms the segment once it has all of them."""

    peer = "node:5552"

    def __init__(self, *there: int) -> None:
        super().__init__([60])
        self.there = deque(there)

    def comes_within(self, seconds: float) -> bool:
        return not self.there

    def taken(self) -> int:
        return self.there.popleft()


def announcing(link: Any) -> RecoveryPublisher:
    publisher = link.publisher = RecoveryPublisher(link, 1, 20, lambda: None, link.taken)
    publisher.publish(MessageRun.of(60, [b"a segment of the messages from 21 to 60"]))
    return publisher


def test_a_segment_is_waited_for_as_long_as_the_queue_gets_messages() -> None:
    link = Appending(21, 40, 58)
    announcing(link).wait_confirmed(60, 0.001)
    assert not link.left


def test_a_segment_of_which_no_more_comes_is_given_up_and_the_others_of_the_connection_are_not() -> None:
    link = Appending(21, 40, 40, 58)
    with pytest.raises(StorageError, match="no message came since number 40"):
        announcing(link).wait_confirmed(60, 0.001)


class Answering(Confirming):
    """A connection of several publishers, to which the server answers so."""

    peer = "node:5552"

    def __init__(self, *answers: StreamCommand) -> None:
        super().__init__([])
        self.answers = deque(answers)
        self.client = StreamClient.__new__(StreamClient)
        connection: Any = self
        self.client.connection = connection
        self.client._publishers = {
            number: RecoveryPublisher(connection, number, 0, lambda: None) for number in (1, 2)
        }
        for publisher in self.publishers:
            publisher.publish(MessageRun.of(1, [b"x"]))

    @property
    def publishers(self) -> list[RecoveryPublisher]:
        return [*self.client._publishers.values()]

    def await_command(self, kind: object) -> None:
        self.client._on_command(self.answers.popleft())

    def refusal(self, code: int, what: str) -> PreconditionFailed:
        return PreconditionFailed(f"{what}: code {code}")


def test_what_the_server_refuses_of_one_queue_is_told_to_its_publisher_alone() -> None:
    """Else another queue's segments are refused, and this one is waited for in vain."""
    link = Answering(PublishError(2, [FailedPublish(1, 17)]), PublishConfirm(1, [1]), Heartbeat())
    first, second = link.publishers
    first.wait_confirmed(1, 5.0)
    asks: list[Callable[[], None]] = [
        lambda: second.wait_confirmed(1, 5.0),
        lambda: second.publish(MessageRun.of(2, [b"x"])),
    ]
    for ask in asks:
        with pytest.raises(PreconditionFailed, match="messages up to number 1 "):
            ask()
    assert len(link.answers) == 1, "nothing is waited for"
    first.publish(MessageRun.of(2, [b"x"]))
