"""etcd as it is reached, and who is trusted to be it; what it is asked, see tests/e2e/test_etcd.py."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from leveret.config.sections.etcd import EtcdOptions
from leveret.config.uris import Endpoints
from leveret.model.errors import ConfigError
from leveret.runtime.coordination.etcd import Etcd, EtcdUnreachable, etcd_context

ATTEMPTS = 100


def test_without_a_setting_the_system_says_whom_to_trust() -> None:
    assert etcd_context(EtcdOptions()) is None


def test_authorities_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^cluster.etcd.ssl_options.cacertfile = \S+none.pem cannot be read"
    ):
        etcd_context(EtcdOptions(cacertfile=tmp_path / "none.pem"))


@pytest.fixture
def resetting() -> Iterator[int]:
    """The port of an endpoint that resets each connection at once, as a proxy does whose etcd is away."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()

        thread = threading.Thread(target=reset, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_an_endpoint_that_resets_connections_as_they_are_made_is_away(resetting: int) -> None:
    """In the event loop that a node has, where a socket may be gone before its options are set."""

    async def ask() -> set[type[BaseException]]:
        client = Etcd(Endpoints().parse(f"http://127.0.0.1:{resetting}"), 5)
        asked = [client.read("x") for _ in range(ATTEMPTS)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        await client.close()
        return {type(each) for each in found}  # type: ignore[misc]  # each is an error

    assert uvloop.run(ask()) == {EtcdUnreachable}
