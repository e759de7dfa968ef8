"""runtime.schema_sync.endpoints: the form of an upstream's endpoints."""

from __future__ import annotations

import pytest

from leveret.model.errors import InvalidCommand
from leveret.runtime.schema_sync.endpoints import UpstreamEndpoint, parse_upstream


def read(endpoint: str) -> UpstreamEndpoint:
    return parse_upstream({"endpoints": [endpoint], "username": "u", "password": "p"}).endpoints[0]


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("a:5672", UpstreamEndpoint("a", 5672)),
        ("amqps://[::1]:65535", UpstreamEndpoint("::1", 65535, "amqps")),
        ("https://a:1/b/", UpstreamEndpoint("a", 1, "https", "/b")),
    ],
)
def test_an_endpoint_is_a_host_and_a_port_with_or_without_a_scheme(
    text: str, endpoint: UpstreamEndpoint
) -> None:
    assert read(text) == endpoint


@pytest.mark.parametrize("port", ["", "0", "65536", "+1", "\u0661", "1/b", "9" * 5000])
@pytest.mark.parametrize("host", ["a", "[::1]"])
def test_a_port_is_a_number_from_1_to_65535(host: str, port: str) -> None:
    with pytest.raises(InvalidCommand, match=r"endpoints\[0\]"):
        read(f"{host}:{port}")


@pytest.mark.parametrize("place", ["a", ":1", "::1:5672", "u@a:1", "ftp://a:1"])
def test_another_text_is_refused(place: str) -> None:
    with pytest.raises(InvalidCommand, match=r"endpoints\[0\]"):
        read(place)
