from __future__ import annotations

import pytest

from leveret.model.host_port import host_and_port


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a.example:5672", ("a.example", 5672)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]:5672", ("::1", 5672)),
        ("::1:5672", ("::1", 5672)),
        ("a:65536", None),
        ("a:0", None),
        ("a:", None),
        ("a", None),
        (":5672", None),
        ("[]:5672", None),
        ("a:+1", None),
        ("a:" + "9" * 5000, None),
        ("a:\N{ARABIC-INDIC DIGIT ONE}", None),
    ],
)
def test_a_place_is_a_host_and_a_port(text: str, found: tuple[str, int] | None) -> None:
    assert host_and_port(text) == found


def test_port_0_is_a_port_where_it_may_be() -> None:
    assert host_and_port("a:0", least=0) == ("a", 0)
