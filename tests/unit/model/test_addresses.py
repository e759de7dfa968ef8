"""IP addresses in texts."""

from __future__ import annotations

import pytest

from leveret.model.addresses import bracketed, is_address, is_loopback


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "::1%lo"])
def test_this_machine_is_told_in_every_form(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["", "192.0.2.1", "::ffff:192.0.2.1", "fe80::1%eth0", "localhost", "unix"]
)
def test_whatever_else_is_not_this_machine(address: str) -> None:
    assert not is_loopback(address)


@pytest.mark.parametrize(
    ("text", "expected"), [("10.0.0.1", True), ("::1", True), ("eu.example", False), ("", False)]
)
def test_an_address_is_told_from_a_name(text: str, expected: bool) -> None:
    assert is_address(text) is expected


@pytest.mark.parametrize(
    ("host", "shown"), [("::1", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("eu.example", "eu.example")]
)
def test_only_an_ipv6_address_is_in_brackets_before_a_port(host: str, shown: str) -> None:
    assert bracketed(host) == shown
