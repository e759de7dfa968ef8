"""A cluster's store against a real etcd: what happens is told in order, and who lives is known."""

from __future__ import annotations

import asyncio
import base64
import random
from functools import partial

import httpx
import pytest

from leveret.config import build, gather
from leveret.config.uris import Endpoints
from leveret.core.replication.cluster import AliveChanged, Presence, encode
from leveret.core.replication.election import DeleteKey, PutKey, StoreTransaction, UnreadableState
from leveret.runtime.cluster.membership import store
from leveret.runtime.cluster.membership.store import ClusterStore, LeaseLost, NameTaken
from leveret.runtime.coordination.etcd import Etcd
from leveret.testing.network.link_proxy import LinkProxy
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.network.waiting import until
from leveret.testing.servers import etcd
from leveret.testing.servers.etcd import EtcdCluster, EtcdMember
from tests.e2e.store_node import PATIENCE_S, SHORT_MS, Node, etcd_door, node, read

pytestmark = pytest.mark.skipif(etcd.available() is not None, reason=str(etcd.available()))


# What happens is told.


async def test_all_there_is_comes_first_then_every_revision_in_order(shared_etcd: EtcdCluster) -> None:
    chance = random.Random(1)

    async with node("a", shared_etcd.setting, "order") as a:
        before = [await a.put(f"x{number}") for number in range(5)]
        async with node("b", shared_etcd.setting, "order") as b:
            first = b.heard[0]
            assert {event.key for event in first[1]} == {
                a.keys.alive("a"),
                *(f"order/x{number}" for number in range(5)),
            }
            assert sorted(event.modified for event in first[1])[1:] == before
            revisions = []
            for _ in range(60):
                key = f"order/x{chance.randrange(8)}"
                write = DeleteKey(key) if chance.random() < 0.3 else PutKey(key, chance.randbytes(3))
                writer = chance.choice((a, b))
                revisions.append(await writer.store.transact(StoreTransaction((), (write,))))
            await until(lambda: a.store.revision == b.store.revision == revisions[-1])
            heard = [revision for revision, _ in b.heard[1:]]
            assert [one for one in heard if one in revisions] == revisions
            assert heard == sorted(set(heard))
            assert [one for one in a.heard if one[0] in revisions] == [
                one for one in b.heard if one[0] in revisions
            ]
            there = await read(shared_etcd.setting, "order/")
            assert b.keys_now == a.keys_now
            assert b.keys_now == {
                key: entry.value for key, entry in there.items() if not key.startswith("order/turns/")
            }
            assert (a.state.alive, b.state.alive) == ({"a": a.presence(), "b": b.presence()},) * 2
        await until(lambda: a.changed[-1] == AliveChanged("b", None))
        assert (a.losses, b.losses) == ([], [])


async def test_what_happens_before_a_node_is_announced_waits_until_then(shared_etcd: EtcdCluster) -> None:
    async with node("a", shared_etcd.setting, "waits") as a:
        b = Node("b", shared_etcd.setting, "waits")
        await b.store.start()
        await a.put("later")
        assert [len(events) for _, events in b.heard] == [1]
        await b.store.announce(b.presence)
        await until(lambda: b.keys_now == a.keys_now)
        again = Presence("i1", "tcp://elsewhere:1", "", 0, "1")
        await b.store.announce(lambda: again)
        await until(lambda: a.state.alive.get("b") == again)
        await b.store.stop()


async def test_what_happened_while_the_watch_was_cut_is_told_as_it_happened(shared_etcd: EtcdCluster) -> None:
    with LinkProxy(shared_etcd.members[0].port) as link:
        async with (
            node("a", shared_etcd.setting, "cut") as a,
            node("b", f"http://{LOOPBACK}:{link.port}", "cut") as b,
        ):
            for _ in range(3):
                link.refuse()
                revisions = [await a.put("x", encode(number)) for number in range(5)]
                link.allow()
                await until(partial(b.has, revisions[-1]))
                assert [(revision, len(events)) for revision, events in b.heard[-5:]] == [
                    (revision, 1) for revision in revisions
                ]
            assert b.losses == []


async def test_what_etcd_has_forgotten_meanwhile_is_told_as_differences(shared_etcd: EtcdCluster) -> None:
    with LinkProxy(shared_etcd.members[0].port) as link:
        async with (
            node("a", shared_etcd.setting, "forgotten") as a,
            node("b", f"http://{LOOPBACK}:{link.port}", "forgotten") as b,
        ):
            for name in ("stays", "goes", "changes"):
                last = await a.put(name)
            await until(lambda: b.store.revision == last)
            link.refuse()
            await a.put("comes")
            await a.put("changes", b"2")
            last = await a.store.transact(StoreTransaction((), (DeleteKey("forgotten/goes"),)))
            shared_etcd.members[0].ask("kv/compaction", revision=str(last), physical=True)
            link.allow()
            await until(lambda: b.store.revision == last)
            assert b.heard[-1][0] == last
            assert {(event.key, event.value) for event in b.heard[-1][1]} == {
                ("forgotten/goes", None),
                ("forgotten/comes", b"1"),
                ("forgotten/changes", b"2"),
            }
            last = await a.put("after")
            await until(lambda: a.store.revision == b.store.revision == last)
            assert b.keys_now == a.keys_now


async def test_old_revisions_are_forgotten_before_etcd_is_full_and_one_node_is_enough(
    shared_etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An etcd that keeps all of them refuses every write once it has 2 GB, after a million exclusive queues."""
    monkeypatch.setattr(store, "COMPACT_S", 0.2)
    monkeypatch.setattr(store, "COMPACT_REVISIONS", 5)
    async with node("a", shared_etcd.setting, "history") as a, node("b", shared_etcd.setting, "history") as b:
        first = await a.put("x")
        assert first is not None
        async with asyncio.timeout(PATIENCE_S):
            while await is_kept(shared_etcd.members[0], first):
                last = await a.put("x")
                await asyncio.sleep(0.05)
        await until(lambda: a.store.revision == b.store.revision == last)
        assert (a.losses, b.losses) == ([], [])
        client = Etcd(Endpoints().parse(shared_etcd.setting), 10.0)
        await client.compact(first)  # as a node does that comes second
        await client.close()


async def is_kept(member: EtcdMember, revision: int) -> bool:
    """Whether etcd has a revision."""
    try:
        await asyncio.to_thread(
            member.ask, "kv/range", key=base64.b64encode(b"k").decode(), revision=str(revision)
        )
    except httpx.HTTPStatusError as error:
        if "compacted" not in error.response.text:
            raise
        return False
    return True


async def test_an_error_of_etcd_is_shown_until_the_lease_was_renewed_after_it(
    shared_etcd: EtcdCluster,
) -> None:
    """A quiet cluster has no other request: its etcd counted as away for good after one lost answer."""
    with LinkProxy(shared_etcd.members[0].port) as link:
        async with node("a", f"http://{LOOPBACK}:{link.port}", "shown", ttl_ms=5_000) as a:
            link.refuse()
            await until(lambda: a.store.status()["last_error"] is not None)
            link.allow()
            await until(lambda: a.store.status()["last_error"] is None)
            assert a.losses == []


async def test_what_nobody_can_follow_ends_the_lease_and_is_named(shared_etcd: EtcdCluster) -> None:
    async with node("a", shared_etcd.setting, "unread") as a, node("b", shared_etcd.setting, "unread") as b:
        await a.put("epoch", b"not a number")
        await until(lambda: b.losses)
        assert "etcd's key unread/epoch has a value that no node" in b.losses[0]
        assert not b.store.holds_lease_now()
        c = Node("c", shared_etcd.setting, "unread")
        with pytest.raises(UnreadableState, match="unread/epoch"):
            await c.enter()
        assert not c.store.holds_lease_now()
        await c.store.stop()


async def test_a_watch_that_tells_nothing_is_given_up_when_it_should_have(shared_etcd: EtcdCluster) -> None:
    watches = []

    def mute(said: bytes, answered: int) -> bool:
        """The first watch says that it was made, and no more."""
        if b"/v3/watch" in said and not answered:
            watches.append(said)
        return b"/v3/watch" in said and bool(answered) and len(watches) == 1

    async with (
        etcd_door(shared_etcd.members[0], mute, hangs_up=False) as url,
        node("a", shared_etcd.setting, "mute") as a,
    ):
        b = Node("b", url, "mute", 2_000)
        await b.enter()
        await until(lambda: watches)
        revision = await a.put("x")
        assert revision
        b.store.expect(revision)
        await until(lambda: b.store.revision == revision)
        assert len(watches) == 2
        assert (b.losses, b.store.holds_lease_now()) == ([], True)
        await b.store.stop()


# Who lives.


async def test_a_node_that_comes_back_waits_for_the_lease_of_before(shared_etcd: EtcdCluster) -> None:
    async with node("b", shared_etcd.setting, "back") as b:
        killed = Node("a", shared_etcd.setting, "back", SHORT_MS)
        await killed.enter("first")
        await until(lambda: "a" in b.state.alive)
        vanish(killed)
        back = Node("a", shared_etcd.setting, "back", SHORT_MS)
        await back.enter("second")
        # Each of the two has been seen, and its end: nobody is taken for the other.
        await until(lambda: "a" in b.state.alive)
        seen = [one.presence for one in b.changed if isinstance(one, AliveChanged) and one.name == "a"]
        assert [one and one.run_id for one in seen] == ["first", None, "second"]
        assert (await read(shared_etcd.setting, "back/turns/")).keys() == {b.store._turn, back.store._turn}
        await back.store.stop()
        await killed.store.stop()


def vanish(one: Node) -> None:
    """What is left of a node that was killed: a lease that nobody keeps alive."""
    lease, one.store._lease = one.store._lease, None
    assert lease is not None
    lease.end()


async def test_two_nodes_of_one_name_are_not_both_let_in(shared_etcd: EtcdCluster) -> None:
    async with node("a", shared_etcd.setting, "twins") as a:
        twin = Node("a", shared_etcd.setting, "twins", 3 * SHORT_MS)  # As long does it wait for the name.
        with pytest.raises(NameTaken, match="another node 'a' runs in the cluster below twins/"):
            await twin.enter("second")
        assert a.state.alive["a"].run_id == "i1"
        await twin.store.stop()


async def test_without_etcd_the_lease_ends_by_the_clock_and_with_it_all_goes_on(
    own_etcd: EtcdCluster,
) -> None:
    member = own_etcd.members[0]
    async with node("a", own_etcd.setting, "away", SHORT_MS) as a, node("b", own_etcd.setting, "away") as b:
        await until(lambda: "b" in a.state.alive)
        member.pause()
        writing = asyncio.create_task(a.put("x"))
        await until(lambda: a.losses)
        assert "no keepalive of the lease in time" in a.losses[0]
        assert not a.store.holds_lease_now()
        with pytest.raises(LeaseLost):
            await writing
        assert a.losses == a.losses[:1]
        assert b.store.holds_lease_now()
        member.go_on()
        # What was asked for while etcd hung was done, or not: but never after the lease.
        await until(lambda: "a" not in b.state.alive)
        back = Node("a", own_etcd.setting, "away")
        await back.enter("second")
        await until(lambda: b.state.alive.get("a") == back.presence("second"))
        assert back.store.status()["holds_lease"] is True
        await back.store.stop()


async def test_a_restart_of_etcd_that_is_shorter_than_the_lease_costs_nothing(own_etcd: EtcdCluster) -> None:
    async with node("a", own_etcd.setting, "restart") as a, node("b", own_etcd.setting, "restart") as b:
        for number in range(3):
            own_etcd.members[0].kill9()
            writing = asyncio.create_task(a.put("x", encode(number)))
            await asyncio.to_thread(own_etcd.members[0].restart)
            revision = await writing
            await until(partial(b.has, revision))
            assert b.heard[-1][1][0].value == encode(number)
        assert (a.losses, b.losses) == ([], [])


async def test_a_node_that_lost_its_lease_without_etcd_does_not_wait_for_itself(
    own_etcd: EtcdCluster,
) -> None:
    former: set[int] = set()
    lost = Node("a", own_etcd.setting, "itself", former=former)
    await lost.enter()
    own_etcd.members[0].kill9()
    lease = lost.store._lease
    assert lease is not None
    lease.lose("this test says so")
    await lost.store.stop()
    assert former == {lease.id}
    await asyncio.to_thread(own_etcd.members[0].restart)
    back = Node("a", own_etcd.setting, "itself", former=former)
    # The lease would last for longer than the patience.
    async with asyncio.timeout(PATIENCE_S / 2):
        await back.enter("second")
    assert former == set()
    await back.store.stop()


def test_a_member_of_etcd_that_dies_or_hangs_is_left_for_another() -> None:
    async def scene(cluster: EtcdCluster) -> None:
        async with node("a", cluster.setting, "many") as a, node("b", cluster.setting, "many") as b:
            for harm in (EtcdMember.kill9, EtcdMember.pause):
                by_url = {member.url: member for member in cluster.members}
                first = by_url[str(b.store._etcd.endpoint)]
                await asyncio.to_thread(harm, first)
                revision = await a.put("x")
                await b.put("y")
                assert revision
                b.store.expect(revision)
                await until(partial(b.has, revision + 1))
                assert str(b.store._etcd.endpoint) != first.url
                first.go_on()
                if not first.process.alive:
                    await asyncio.to_thread(first.restart)
            assert b.keys_now == {
                key: entry.value
                for key, entry in (await read(cluster.setting, "many/")).items()
                if "turns" not in key
            }
            assert (a.losses, b.losses) == ([], [])

    with EtcdCluster(3) as cluster:
        asyncio.run(scene(cluster))


async def test_all_is_read_page_by_page(shared_etcd: EtcdCluster) -> None:
    async with node("a", shared_etcd.setting, "pages") as a:
        for first in (0, 100):
            puts = tuple(PutKey(f"pages/{number:03}", encode(number)) for number in range(first, first + 100))
            await a.store.transact(StoreTransaction((), puts))
        whole = await read(shared_etcd.setting, "pages/0")
        assert {key: entry.value for key, entry in whole.items()} == {
            f"pages/{number:03}": encode(number) for number in range(100)
        }
        for page in (1, 7, 50, 99, 100):
            assert await read(shared_etcd.setting, "pages/0", page) == whole


def test_a_status_tells_no_password() -> None:
    variables = {
        "LEVERET_CLUSTER_ETCD_ENDPOINTS": "http://root:s3cret@10.0.0.8",
        "LEVERET_CLUSTER_FORMATION_PEER_DISCOVERY_BACKEND": "etcd",
    }
    store = ClusterStore(build(gather(environ=variables)), lambda *_: None, lambda _: None)
    status = store.status()
    assert status["endpoints"] == ["http://10.0.0.8:2379"]
    assert (status["holds_lease"], status["lease_left_ms"]) == (False, None)
    assert "s3cret" not in str(status)
