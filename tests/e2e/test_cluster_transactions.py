"""What a node of a cluster writes to a real etcd is written once, in order, and never after its lease."""

from __future__ import annotations

import pytest

from leveret.config.uris import Endpoints, EtcdEndpoint
from leveret.core.replication.cluster import encode
from leveret.core.replication.election import DeleteKey, PutKey, StoreTransaction, Unchanged
from leveret.core.replication.transactions import OPS_MAX
from leveret.runtime.cluster.membership.store import LeaseLost
from leveret.runtime.coordination.etcd import Etcd, EtcdRefused
from leveret.testing.network.waiting import until
from leveret.testing.servers import etcd
from leveret.testing.servers.etcd import EtcdCluster
from tests.e2e.store_node import Node, etcd_door, node, read

pytestmark = pytest.mark.skipif(etcd.available() is not None, reason=str(etcd.available()))


async def test_a_transaction_is_done_if_its_conditions_hold(shared_etcd: EtcdCluster) -> None:
    async with (
        node("a", shared_etcd.setting, "conditions") as a,
        node("b", shared_etcd.setting, "conditions") as b,
    ):
        revision = await a.put("x", b"1", Unchanged("conditions/x", 0))
        assert revision
        assert await b.put("x", b"2", Unchanged("conditions/x", 0)) is None
        assert await b.put("x", b"2", Unchanged("conditions/x", revision)) == revision + 2
        put = PutKey("conditions/leased", b"1", leased=True)
        await a.store.transact(StoreTransaction((), (put,)))
        written = await read(shared_etcd.setting, "conditions/")
        assert written["conditions/x"].value == b"2"
        assert written["conditions/leased"].lease == written[a.keys.alive("a")].lease != 0
        some = tuple(PutKey(f"conditions/many/{number}", b"") for number in range(OPS_MAX))
        guards = tuple(Unchanged(f"conditions/many/{number}", 0) for number in range(OPS_MAX))
        assert await a.store.transact(StoreTransaction(guards, some))
        delete = DeleteKey("conditions/many/", is_prefix=True)
        last = await a.store.transact(StoreTransaction((), (delete,)))
        await until(lambda: b.store.revision == last)
        assert not [key for key in b.keys_now if "many" in key]
        assert await a.store.transact(StoreTransaction((), (delete,))) == last + 1 if last else False


async def test_what_etcd_refuses_is_told_and_the_next_is_done(shared_etcd: EtcdCluster) -> None:
    async with node("a", shared_etcd.setting, "refused") as a:
        twice = (PutKey("refused/x", b"1"), PutKey("refused/x", b"2"))
        with pytest.raises(EtcdRefused, match="duplicate key"):
            await a.store.transact(StoreTransaction((), twice))
        assert await a.put("x", b"3")
        assert (await read(shared_etcd.setting, "refused/"))["refused/x"].value == b"3"


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_transaction_whose_answer_was_lost_is_done_once(
    shared_etcd: EtcdCluster, is_alone: bool
) -> None:
    lost = []

    def deaf(said: bytes, _: int) -> bool:
        """Every second transaction's answer is lost."""
        if b"/v3/kv/txn" in said:
            lost.append(said)
        return b"/v3/kv/txn" in said and len(lost) % 2 == 0

    prefix = f"lost-{is_alone}"
    async with (
        etcd_door(shared_etcd.members[0], deaf, hangs_up=True) as url,
        node("b", shared_etcd.setting, prefix) as b,
    ):
        a = Node("a", url if is_alone else f"{url},{shared_etcd.setting}", prefix, 3_000)
        await a.enter()
        revisions = []
        for number in range(6):
            a.store._etcd.endpoint = EtcdEndpoint(url)
            revisions.append(await a.put("x", encode(number)))
        assert None not in revisions
        await until(lambda: b.store.revision >= (revisions[-1] or 0))
        seen = [event for _, events in b.heard for event in events if event.key == f"{prefix}/x"]
        assert [(event.modified, event.value) for event in seen] == [
            (revision, encode(number)) for number, revision in enumerate(revisions)
        ]
        # Each of these asked the deaf server first; a repetition goes to it as well, or to another member.
        assert len(lost) >= len(revisions)
        await a.store.stop()


async def test_an_attempt_that_was_given_up_and_comes_late_is_done_before_the_next_or_not_at_all(
    shared_etcd: EtcdCluster,
) -> None:
    async with node("a", shared_etcd.setting, "late") as a:
        await a.put("x", b"1")
        turn, lease_id = a.store._turn, (await read(shared_etcd.setting, "late/"))[a.store._turn].lease
        late = StoreTransaction(
            (Unchanged(turn, a.store._turn_modified),),
            (PutKey("late/x", b"late"), PutKey(turn, b"3", leased=True)),
        )
        client = Etcd(Endpoints().parse(shared_etcd.setting), 10.0)
        await a.put("x", b"2")
        assert await client.transact(late, lease_id) is None
        # And one that overtakes: its turn is over, but it was a turn; the next one finds that out.
        turns = (await read(shared_etcd.setting, "late/"))[turn]
        early = StoreTransaction(
            (Unchanged(turn, turns.modified),),
            (PutKey("late/x", b"early"), PutKey(turn, b"old", leased=True)),
        )
        assert await client.transact(early, lease_id)
        assert await a.put("x", b"3")
        assert (await read(shared_etcd.setting, "late/"))["late/x"].value == b"3"
        assert await a.put("x", b"4", Unchanged("late/y", 7)) is None
        await client.close()


async def test_nothing_is_written_once_the_lease_is_over(shared_etcd: EtcdCluster) -> None:
    a = Node("a", shared_etcd.setting, "over")
    with pytest.raises(LeaseLost):
        await a.put("x")
    await a.enter()
    lease = (await read(shared_etcd.setting, "over/"))[a.keys.alive("a")].lease
    shared_etcd.members[0].ask("lease/revoke", ID=str(lease))
    with pytest.raises(LeaseLost):
        await a.put("x")
    assert not a.store.holds_lease_now()
    await until(lambda: a.losses)
    assert a.losses == ["etcd has ended the lease"]
    assert await read(shared_etcd.setting, "over/") == {}
    await a.store.stop()
