"""The election against a real etcd: who leads, who may, and who finds out when.

Leases are long where a leader has to stay one, so that a slow machine changes nothing, and short where one ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from leveret.config.sections.etcd import EtcdOptions
from leveret.config.uris import Endpoints, EtcdEndpoint
from leveret.core.replication.election import ElectedLeader, ElectionDeclined
from leveret.runtime.coordination.election import Election, ElectionWon, NotLeader
from leveret.runtime.coordination.etcd import EtcdRefused, EtcdUnreachable, etcd_context
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.network.waiting import until
from leveret.testing.servers import certificates, etcd
from leveret.testing.servers.certificates import CertificateAuthority
from leveret.testing.servers.etcd import EtcdCluster, EtcdMember
from leveret.testing.servers.process import ServerProcess
from tests.e2e.store_node import HEARTBEAT_MS, LONG_MS, PATIENCE_S, etcd_door

pytestmark = pytest.mark.skipif(etcd.available() is not None, reason=str(etcd.available()))

SHORT_MS: Final = 2_000


class Node:
    """An election with what it was told."""

    def __init__(self, election: Election, name: str) -> None:
        self.election, self.name = election, name
        self.deposed: list[str] = []
        self.seen: list[ElectedLeader | None] = []

    async def campaign(self, epoch: int = 0, *, force: bool = False) -> ElectionWon | ElectionDeclined:
        return await self.election.campaign(self.name, f"tcp://{self.name}:5679", epoch, force=force)

    async def win(self, epoch: int = 0) -> ElectionWon:
        """Campaign whenever nobody leads, until it is won."""
        async with asyncio.timeout(PATIENCE_S):
            async for leader in self.election.watch_leader():
                with suppress(EtcdUnreachable):  # A slow machine.
                    if leader is None and isinstance(outcome := await self.campaign(epoch), ElectionWon):
                        return outcome
        raise AssertionError("closed")

    async def watch(self) -> None:
        async for leader in self.election.watch_leader():
            self.seen.append(leader)


@asynccontextmanager
async def node(
    name: str, endpoints: str, prefix: str, ttl_ms: int = LONG_MS, **more: Any
) -> AsyncIterator[Node]:
    settings = EtcdOptions(endpoints=Endpoints().parse(endpoints), prefix=prefix, lease_ttl_ms=ttl_ms)
    one = Node(Election(settings, on_deposed=lambda why: one.deposed.append(why), **more), name)
    one.election.start()
    watching = asyncio.create_task(one.watch())
    try:
        yield one
    finally:
        await one.election.close()
        await watching


# Two in one process.


async def test_one_of_two_leads_the_other_sees_it_and_follows_at_once_when_it_resigns(
    shared_etcd: EtcdCluster,
) -> None:
    async with node("a", shared_etcd.setting, "two") as a, node("b", shared_etcd.setting, "two") as b:
        assert await a.campaign(3) == ElectionWon(4, frozenset())
        await a.election.record_in_sync(frozenset("b"))
        lost = await b.campaign(9)
        assert lost == ElectionDeclined("node a leads in epoch 4", ElectedLeader("a", "tcp://a:5679", 4))
        await until(lambda: b.seen[-1:] == [ElectedLeader("a", "tcp://a:5679", 4)])
        status = b.election.status()
        assert (status["reachable"], status["in_sync"], status["holds_lease"]) == (True, ["a", "b"], False)
        await a.election.resign()
        assert not a.election.holds_lease_now()
        # Far sooner than a lease ends, or nobody would be told within this test's patience.
        await until(lambda: b.seen[-1] is None)
        assert await b.campaign(1) == ElectionWon(5, frozenset("a"))
        assert b.election.holds_lease_now()
        assert (a.deposed, b.deposed) == ([], [])
        await until(lambda: a.seen[-1] == ElectedLeader("b", "tcp://b:5679", 5))


async def test_a_deposed_leader_knows_and_can_not_change_the_record(shared_etcd: EtcdCluster) -> None:
    async with (
        node("a", shared_etcd.setting, "stall", SHORT_MS) as a,
        node("b", shared_etcd.setting, "stall") as b,
    ):
        await a.win()
        await a.election.record_in_sync(frozenset("b"))
        assert a.election.holds_lease_now()
        time.sleep(SHORT_MS / 1000)  # noqa: ASYNC251 # the event loop stands still
        assert not a.election.holds_lease_now()
        assert a.deposed == []
        with pytest.raises(NotLeader):
            await a.election.record_in_sync(frozenset())
        await until(lambda: a.deposed)
        assert (await b.win()).in_sync == frozenset("a")
        with pytest.raises(NotLeader):
            await a.election.record_in_sync(frozenset("b"))
        assert b.election.holds_lease_now()
        assert len(a.deposed) == 1


async def test_a_leader_that_lost_its_key_is_told_though_its_lease_lasts(shared_etcd: EtcdCluster) -> None:
    async with node("a", shared_etcd.setting, "gone") as a:
        await a.campaign()
        key = "Z29uZS9sZWFkZXI="  # gone/leader
        await asyncio.to_thread(shared_etcd.members[0].ask, "kv/deleterange", key=key)
        await until(lambda: a.deposed)
        assert a.deposed == ["etcd has ended the lease"]
        assert await a.win(1) == ElectionWon(2, frozenset())


async def test_a_leader_records_again_who_may_win_when_etcd_was_restored_from_an_older_copy(
    own_etcd: EtcdCluster, tmp_path: Path
) -> None:
    """The copy names a node that lacks what was confirmed without it since, and has the leader's lease, too."""
    [member] = own_etcd.members
    async with node("a", own_etcd.setting, "older") as a:
        await a.win()
        await a.election.record_in_sync(frozenset("b"))
        await asyncio.to_thread(member.stop)
        shutil.copytree(member.data_dir, tmp_path / "copy")
        await asyncio.to_thread(member.restart)
        await a.election.record_in_sync(frozenset())
        await asyncio.to_thread(member.kill9)
        member.lose_data()
        shutil.copytree(tmp_path / "copy", member.data_dir)
        await asyncio.to_thread(member.restart)
        async with node("b", own_etcd.setting, "older") as b:
            await until(lambda: b.election.status()["in_sync"] == ["a"])
        assert a.deposed == []
        await a.election.record_in_sync(frozenset("c"))
        assert a.election.holds_lease_now()


# Many at once.


# Two processes.


class Candidates:
    """Processes of `etcd_candidate`."""

    def __init__(self, cluster: EtcdCluster, home: Path, ttl_ms: int) -> None:
        self._arguments = (cluster.setting, "processes")
        self._home, self._ttl_ms = home, ttl_ms
        self.processes: dict[str, ServerProcess] = {}

    def start(self, name: str) -> ServerProcess:
        one = self.processes[name] = ServerProcess(self._home / f"{name}.log")
        program = [sys.executable, "-m", "tests.e2e.etcd_candidate"]
        one.launch([*program, *self._arguments, name, str(self._ttl_ms)], dict(os.environ))
        return one

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """What it has said; a line that is not whole yet is left out."""
        whole, _, _ = self.processes[name].log_text().rpartition("\n")
        said = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [one for one in said if one["event"] == event]

    def wait(self, name: str, event: str, **fields: Any) -> dict[str, Any]:
        """The first event with these fields."""

        def found() -> list[dict[str, Any]]:
            self.processes[name].assert_alive()
            return [one for one in self.events(name, event) if fields.items() <= one.items()]

        wait_until(lambda: bool(found()), f"{event} {fields} of {name}", PATIENCE_S)
        return found()[0]


@pytest.fixture
def candidates(own_etcd: EtcdCluster, tmp_path: Path) -> Iterator[Candidates]:
    """Node `a` leads, node `b` sees it and is in sync."""
    both = Candidates(own_etcd, tmp_path, SHORT_MS)
    try:
        both.start("a")
        both.wait("a", "won")
        both.start("b")
        both.wait("b", "leader", node_id="a")
        key, value = "cHJvY2Vzc2VzL2luX3N5bmM=", "WyJhIiwiYiJd"  # processes/in_sync, ["a","b"]
        own_etcd.members[0].ask("kv/put", key=key, value=value)
        yield both
    finally:
        for one in both.processes.values():
            one.close()


def test_a_leader_that_is_killed_is_followed_by_the_other_when_its_lease_ends(candidates: Candidates) -> None:
    candidates.processes["a"].kill9()
    assert candidates.wait("b", "leader", node_id=None)
    assert candidates.wait("b", "won")["epoch"] == 2
    candidates.start("a")
    assert candidates.wait("a", "leader", node_id="b")["epoch"] == 2


def test_a_leader_that_is_stopped_promises_nothing_once_another_can_lead(candidates: Candidates) -> None:
    stopped = candidates.processes["a"]
    stopped.signal(signal.SIGSTOP)
    vacant_s = candidates.wait("b", "leader", node_id=None)["at_s"]
    candidates.wait("b", "won")
    stopped.signal(signal.SIGCONT)
    assert candidates.wait("a", "promised")["last_s"] < vacant_s
    assert "no keepalive of the lease in time" in candidates.wait("a", "deposed")["why"]
    assert candidates.wait("a", "leader", node_id="b")["epoch"] == 2


# etcd in trouble.


async def test_without_etcd_the_leader_gives_up_by_itself_and_with_it_all_goes_on(
    own_etcd: EtcdCluster,
) -> None:
    member = own_etcd.members[0]

    async with node("a", own_etcd.setting, "away", SHORT_MS) as a, node("b", own_etcd.setting, "away") as b:
        epoch = (await a.win()).epoch
        await until(lambda: b.seen)
        member.pause()
        with pytest.raises(NotLeader):  # Not sooner: whether etcd has it is not known.
            await a.election.record_in_sync(frozenset("b"))
        assert not a.election.holds_lease_now()
        with pytest.raises(EtcdUnreachable, match=f"no endpoint of etcd answers: {member.url}"):
            await b.campaign()
        await until(lambda: not a.election.status()["reachable"] and a.deposed)
        assert "no keepalive of the lease in time" in a.deposed[0]
        before = len(b.seen)
        member.go_on()
        again = (await a.win(epoch)).epoch
        assert again > epoch
        await until(lambda: len(b.seen) > before and b.seen[-1] == ElectedLeader("a", "tcp://a:5679", again))
        assert a.election.status()["reachable"]


# Answers that get lost.


def deaf_to_transactions(member: EtcdMember) -> AbstractAsyncContextManager[str]:
    """A door of etcd that hands requests in, and hangs up instead of answering a transaction; its URL."""
    return etcd_door(member, lambda said, _: b"/v3/kv/txn" in said, hangs_up=True)


async def test_what_was_done_though_the_answer_got_lost_counts(shared_etcd: EtcdCluster) -> None:
    async with deaf_to_transactions(shared_etcd.members[0]) as deaf, node("a", deaf, "deaf") as a:
        assert await a.campaign() == ElectionWon(1, frozenset())
        assert a.election.holds_lease_now()
    async with deaf_to_transactions(shared_etcd.members[0]) as deaf:
        async with node("b", f"{deaf},{shared_etcd.setting}", "deaf-too") as b:
            assert await b.campaign() == ElectionWon(1, frozenset())
            b.election._etcd.endpoint = EtcdEndpoint(deaf)
            await b.election.record_in_sync(frozenset("c"))
            assert b.election.status()["holds_lease"]
            await b.election.resign()
        async with node("c", shared_etcd.setting, "deaf-too") as c:
            assert await c.campaign() == ElectionWon(2, frozenset("b"))


# Who asks.


async def test_etcd_may_ask_for_a_user_and_forget_logins(own_etcd: EtcdCluster) -> None:
    member = own_etcd.members[0]

    url = f"http://root:s%3Acret@{LOOPBACK}:{member.port}"
    async with node("a", url, "users") as a:  # Nobody is asked yet.
        await until(lambda: a.seen == [None])
    member.ask("auth/user/add", name="root", password="s:cret")
    member.ask("auth/user/grant", user="root", role="root")
    member.ask("auth/enable")
    async with node("a", url, "users") as a:
        await a.campaign()
        await asyncio.to_thread(member.stop)
        await asyncio.to_thread(member.restart)
        await a.election.record_in_sync(frozenset("b"))
        assert a.deposed == []
        assert "cret" not in repr(a.election.status())
        assert a.election.status()["endpoints"] == [member.url]
    for user, why in (
        ("root:wrong@", "refuses user root: .*authentication failed"),
        ("", "user name is empty"),
    ):
        async with node("b", f"http://{user}{LOOPBACK}:{member.port}", "users") as b:
            with pytest.raises(EtcdRefused, match=why) as refused:
                await b.campaign()
            assert "wrong" not in str(refused.value)


@pytest.mark.skipif(certificates.available() is not None, reason=str(certificates.available()))
def test_etcd_may_speak_tls_and_has_to_prove_who_it_is(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    issued = authority.issue("etcd", names=f"IP:{LOOPBACK}")
    trusted = etcd_context(EtcdOptions(cacertfile=authority.cacertfile))

    async def scene(cluster: EtcdCluster) -> None:
        async with node("a", cluster.setting, "tls", SHORT_MS, tls=trusted) as a:
            epoch = (await a.win()).epoch
            cluster.members[0].pause()
            await until(lambda: a.deposed)
            cluster.members[0].go_on()
            assert (await a.win()).epoch > epoch
        async with node("b", cluster.setting, "tls") as b:
            with pytest.raises(EtcdUnreachable, match="certificate verify failed"):
                await b.campaign()
            # From here it rests for a while: what is cut off while it greets is closed by the garbage collector only.
            await until(lambda: b.election.status()["last_error"])

    with EtcdCluster(tls=issued, heartbeat_ms=HEARTBEAT_MS) as cluster:
        asyncio.run(scene(cluster))


@pytest.mark.parametrize("body", [b"not found", b'{"error": "\xff"}'])
async def test_what_is_no_etcd_is_named(body: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(serve, LOOPBACK, 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with node("a", f"http://{LOOPBACK}:{port}", "none") as a:
            with pytest.raises(EtcdUnreachable, match=rf"{port} \(HTTP status 404, not the words of etcd"):
                await a.campaign()
