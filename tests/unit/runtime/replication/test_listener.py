"""Who knocks at a leader's listener without being a follower does it no harm, and keeps no follower out."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from leveret.config.sections.tls import TlsOptions
from leveret.config.uris import NodeUri
from leveret.runtime.link import listening
from leveret.runtime.link import peer as link_peer
from leveret.runtime.link.listening import UNPROVEN_MAX
from leveret.runtime.replication import inbound, listener
from leveret.runtime.replication.outbound import Outbound
from leveret.runtime.replication.sent_node import SentNode
from leveret.runtime.sockets.tls import ListenerTls, client_context
from leveret.testing.applications.compare import compare
from leveret.testing.network.waiting import until
from leveret.testing.servers.certificates import CertificateAuthority
from leveret.wire.link import GREETING, LENGTH
from tests.unit.runtime.cluster.nodes import Other
from tests.unit.runtime.replication.delayed_site import DelayedSite, has_received
from tests.unit.runtime.replication.link_sites import FollowerSite, LeaderSite, in_sync

# The event loop that nodes have.
pytestmark = pytest.mark.uvloop


@asynccontextmanager
async def leading(
    directory: Path, tls: ListenerTls | None = None
) -> AsyncIterator[tuple[LeaderSite, NodeUri]]:
    """A leader that listens."""
    leader = LeaderSite(directory / "leader", random.Random(1))
    try:
        yield leader, await leader.start(tls)
    finally:
        await leader.stop()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ListenerTls:
    issued = CertificateAuthority(tmp_path_factory.mktemp("certificates")).issue("leader")
    options = TlsOptions(certfile=issued.certfile, keyfile=issued.keyfile)
    return ListenerTls(options, "replication.ssl_options")


async def connect(uri: NodeUri, octets: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(uri.host, uri.port)
    writer.write(octets)
    return reader, writer


async def end_of(reader: asyncio.StreamReader) -> None:
    """The other side hangs up."""
    async with asyncio.timeout(60):
        while await reader.read(1000):
            pass


async def test_who_speaks_no_tls_leaves_nothing_behind(tmp_path: Path, tls: ListenerTls) -> None:
    """A health check that connects and goes must not use up the links that the listener takes."""
    async with leading(tmp_path, tls) as (leader, uri):
        for octets in (b"", GREETING, b"\x16\x03\x01\x00\x05hello"):
            reader, writer = await connect(uri, octets)
            writer.write_eof()
            await end_of(reader)
            writer.close()
        assert leader.listener.links == []


@pytest.mark.parametrize("speaks_tls", [True, False])
@pytest.mark.parametrize("octets", [b"", GREETING + LENGTH.pack(100)])
async def test_who_does_not_say_who_it_is_is_sent_away_and_all_goes_on(
    tmp_path: Path, tls: ListenerTls, octets: bytes, speaks_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "BEAT_S", 0.05)
    monkeypatch.setattr(listening, "HANDSHAKE_TIMEOUT_S", 0.2)
    async with leading(tmp_path, tls if speaks_tls else None) as (leader, uri):
        reader, writer = await connect(uri, octets)
        await end_of(reader)
        writer.close()
        assert leader.listener.links == []
        # It still drops those that are silent: nobody waits for them for ever.
        leader.feed.in_sync.joined("silent", leader.feed.position, 0)
        leader.feed.in_sync.acked("silent", leader.feed.position, 0)
        leader.append("queues/0000000000000001")
        leader.feed.in_sync.shipped(leader.feed.position + 1, 0)
        await until(lambda: not leader.feed.in_sync.members, "dropped")


async def test_who_ends_tls_between_two_nodes_is_found_out_whatever_is_verified(
    tmp_path: Path, tls: ListenerTls
) -> None:
    """It needs no secret to pass the handshake on, and could change what it likes behind it."""
    errors: list[str] = []
    async with leading(tmp_path, tls) as (leader, uri):
        between = await asyncio.start_server(
            lambda reader, writer: pass_on(uri, reader, writer), "127.0.0.1", 0, ssl=tls.context()
        )
        host, port = between.sockets[0].getsockname()
        direct = FollowerSite(tmp_path / "direct", uri, tls=lambda: client_context(TlsOptions(), "x"))
        await until(lambda: in_sync(leader), "in sync")
        deceived = FollowerSite(
            tmp_path / "deceived",
            NodeUri("tls", host, port),
            tls=lambda: client_context(TlsOptions(), "x"),
            on_hopeless=lambda error: errors.append(str(error)),
        )
        await until(lambda: errors, "found out")
        assert [link.node_id for link in leader.listener.followers] == [direct.identity.identity.node_id]
        between.close()
        for follower in (direct, deceived):
            await follower.stop()
    assert "the secrets differ" in errors[0]
    assert "something between the two ends it" in errors[0]


async def pass_on(uri: NodeUri, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Stand between: TLS with both, everything passed on."""
    context = client_context(TlsOptions(), "x")
    there_reader, there_writer = await asyncio.open_connection(uri.host, uri.port, ssl=context)

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while octets := await source.read(65536):
                target.write(octets)
        target.close()

    await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))


async def test_many_who_do_not_say_who_they_are_keep_no_follower_out(tmp_path: Path) -> None:
    async with leading(tmp_path) as (leader, uri):
        strangers = [await connect(uri, GREETING) for _ in range(listener._LINKS_MAX + 20)]
        follower = FollowerSite(tmp_path / "follower", uri)
        await until(lambda: in_sync(leader), "in sync")
        assert len(leader.listener.links) <= UNPROVEN_MAX + 1
        await follower.stop()
        for _, writer in strangers:
            writer.close()


async def test_acks_of_one_of_two_with_the_same_id_say_nothing_of_the_other(tmp_path: Path) -> None:
    """A node and a copy of it: the one that came last counts, and promises wait for what that one has."""
    async with leading(tmp_path) as (leader, uri):
        first = FollowerSite(tmp_path / "first", uri)
        await until(lambda: in_sync(leader), "in sync")
        second = FollowerSite(tmp_path / "second", uri)
        second.identity.identity.node_id = first.identity.identity.node_id
        for _ in range(20):
            leader.change()
            await asyncio.sleep(0.01)
            ids = [link.node_id for link in leader.listener.followers]
            assert len(ids) == len(set(ids))
        await first.stop()
        await until(lambda: in_sync(leader), "in sync with the copy")
        await second.stop()
        assert compare(leader.directory, second.directory).is_identical


@pytest.mark.parametrize("kind", [FollowerSite, DelayedSite])
async def test_the_lag_of_a_follower_that_confirms_do_not_wait_for_grows_by_the_clock(
    tmp_path: Path, kind: type[FollowerSite]
) -> None:
    """A late follower had no lag once it was out of sync, and a delayed one never had any."""
    async with leading(tmp_path) as (leader, uri):
        follower = kind(tmp_path / "follower", uri)
        has_all = in_sync if kind is FollowerSite else has_received
        await until(lambda: has_all(leader), "the follower has all")
        [link] = leader.listener.followers
        assert link.row()["lag_s"] == 0.0
        leader.append("definitions")
        leader.feed.cut()
        began_ms = leader.feed.elapsed_ms()
        leader.feed.in_sync.left(link.node_id)
        leader.feed.elapsed_ms = lambda: began_ms + 40_000
        assert link.row()["lag_s"] >= 40.0
        await until(lambda: link.row()["lag_s"] == 0.0, "it has acked")
        await follower.stop()


async def test_a_link_that_takes_nothing_is_gone_soon_after_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for its socket, and who waits for that, does not stay until the peer's system gives up."""
    monkeypatch.setattr(link_peer, "CLOSE_TIMEOUT_S", 0.1)
    async with leading(tmp_path) as (leader, uri):
        _, writer = await connect(uri, GREETING)
        await until(lambda: len(leader.listener.links) == 1, "connected")
        [peer] = leader.listener.links
        peer.receiver = link = Other()
        peer.write(bytes(64 * 1024 * 1024))
        waiting = asyncio.create_task(peer.drain())
        peer.close()
        await asyncio.wait_for(waiting, 60)
        await asyncio.wait_for(link.is_over.wait(), 60)
        assert not leader.listener.links
        writer.close()


async def test_a_link_that_ends_before_the_first_step_of_its_task_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is cancelled before it has begun never awaits what was handed to it, which is a warning."""
    ended: list[Outbound] = []
    reported: Any = SentNode.reported

    def begin_and_end(self: SentNode, *args: Any) -> None:
        reported(self, *args)
        link = cast("Outbound", self.link)
        if len(ended) < 2:
            ended.append(link)
            link.ended(None)
            link.peer.close()

    monkeypatch.setattr(SentNode, "reported", begin_and_end)
    async with leading(tmp_path) as (leader, uri):
        follower = FollowerSite(tmp_path / "follower", uri)
        await until(lambda: in_sync(leader), "in sync")
        await follower.stop()
    assert len(ended) == 2
    gc.collect()


@pytest.mark.long
async def test_two_followers_that_are_copies_of_one_do_not_send_each_other_away_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inbound, "RETRY_S", (0.01, 0.02, 0.05, 0.1, 0.2))
    async with leading(tmp_path) as (leader, uri):
        leader.append("definitions")
        follower = FollowerSite(tmp_path / "follower", uri)
        await until(lambda: in_sync(leader), "in sync")
        await follower.stop()
        shutil.copytree(tmp_path / "follower", tmp_path / "copy")
        both = [FollowerSite(tmp_path / each, uri) for each in ("follower", "copy")]
        caplog.clear()
        with caplog.at_level("WARNING"):
            await asyncio.sleep(2)
        for each in both:
            await each.stop()
    # Each ends the other one's link, a tenth of the usual waits after its own has ended.
    assert 0 < caplog.text.count("follower_connected_anew") < 30
