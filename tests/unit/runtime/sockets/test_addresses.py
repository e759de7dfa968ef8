"""Which peers are on this machine."""

from __future__ import annotations

import pytest

from leveret.runtime.sockets.addresses import is_loopback


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "::1%lo"])
def test_this_machine_is_told_in_every_form(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["", "192.0.2.1", "::ffff:192.0.2.1", "fe80::1%eth0", "localhost", "unix"]
)
def test_whatever_else_is_not_this_machine(address: str) -> None:
    assert not is_loopback(address)
