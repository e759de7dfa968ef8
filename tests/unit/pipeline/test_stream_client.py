"""The parts that need no server; the rest is in tests/e2e/test_stream_listener.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import InvalidCommand
from leveret.pipeline.stream_client import GapError, Unreachable, _batches, connect, parse_endpoint
from leveret.wire.stream.publish import encode_publish


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [("a.example:5552", ("a.example", 5552)), ("[::1]:5552", ("::1", 5552)), ("10.0.0.1:1", ("10.0.0.1", 1))],
)
def test_an_endpoint_is_host_and_port(text: str, endpoint: tuple[str, int]) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize("text", ["", "host", "host:", ":5552", "host:port", "host:-1"])
def test_an_endpoint_without_host_or_port_is_named(text: str) -> None:
    with pytest.raises(InvalidCommand, match=f"'{text}' is not host:port"):
        parse_endpoint(text)


def test_an_empty_list_of_endpoints_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="the list is empty"):
        connect([], vhost="/", username="u", password="p")


def test_a_gap_names_its_bounds_and_what_to_do() -> None:
    assert str(GapError("s", 3, 10)) == (
        "stream s: offsets 3 to 9 are gone, the first one retained is 10; "
        "raise the upstream's retention, or start over from there"
    )


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(50, 1000))
def test_batches_keep_the_order_and_fit_the_frame_unless_one_message_alone_does_not(
    sizes: list[int], frame_max_bytes: int
) -> None:
    entries = [(number, b"x" * size) for number, size in enumerate(sizes)]
    batches = list(_batches(entries, frame_max_bytes))
    assert [entry for batch in batches for entry in batch] == entries
    for batch in batches:
        assert len(batch) == 1 or len(encode_publish(0, batch)) - 4 <= frame_max_bytes


def test_as_many_messages_as_fit_share_a_batch() -> None:
    entries = [(number, b"x" * 88) for number in range(20)]
    assert [len(batch) for batch in _batches(entries, 1009)] == [10, 10]
