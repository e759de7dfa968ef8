"""The parts that need no server; the rest is in tests/e2e/test_stream_listener.py."""

from __future__ import annotations

import pytest

from leveret.model.errors import InvalidCommand
from leveret.pipeline.upstream.stream_client import GapError, UpstreamUnreachable, connect, parse_endpoint


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
    with pytest.raises(UpstreamUnreachable, match="the list is empty"):
        connect([], vhost="/", username="u", password="p")


def test_a_gap_names_its_bounds_and_what_to_do() -> None:
    text = str(GapError("s", 3, 10))
    assert text.startswith("stream s: offsets 3 to 9 are gone, the first one retained is 10; ")
    assert "delete_all_data_on_standby_replication_cluster here" in text
