"""A cluster's store against a real etcd: what happens is told in order, what is written is written once.

Leases are long where a node has to stay, so that a slow machine changes nothing, and short where one ends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import pytest

from leveret.config import Config, build, gather
from leveret.config.uris import Endpoint, Endpoints
from leveret.core.cluster import AliveChanged, Changed, ClusterState, Event, Keys, Presence, encode
from leveret.core.election import Delete, Entry, Put, Transaction, Unchanged, UnreadableState
from leveret.core.transactions import OPS_MAX
from leveret.runtime.cluster.store import ClusterStore, LeaseLost, NameTaken
from leveret.runtime.etcd import Etcd, EtcdCompacted, EtcdRefused
from leveret.testing import etcd
from leveret.testing.etcd import EtcdCluster, EtcdMember
from leveret.testing.link_proxy import LinkProxy
from leveret.testing.ports import LOOPBACK

pytestmark = pytest.mark.skipif(etcd.available() is not None, reason=str(etcd.available()))

PATIENCE_S: Final = 30.0
LONG_MS: Final = 30_000
SHORT_MS: Final = 1_000
HEARTBEAT_MS: Final = 20
"""Of an etcd of one member, which so starts sooner and gives leases of one second."""


@pytest.fixture(scope="module")
def shared() -> Iterator[EtcdCluster]:
    with EtcdCluster(heartbeat_ms=HEARTBEAT_MS) as one:
        yield one


@pytest.fixture
def own() -> Iterator[EtcdCluster]:
    """For a test that is rough with it."""
    with EtcdCluster(heartbeat_ms=HEARTBEAT_MS) as one:
        yield one


def config(name: str, endpoints: str, prefix: str, ttl_ms: int = LONG_MS) -> Config:
    return build(
        gather(
            overrides={
                "nodename": name,
                "cluster_formation.peer_discovery_backend": "etcd",
                "cluster.etcd.endpoints": endpoints,
                "cluster.etcd.prefix": prefix,
                "cluster.etcd.lease_ttl": f"{ttl_ms}ms",
            }
        )
    )


class Node:
    """A store with what it was told."""

    def __init__(self, name: str, endpoints: str, prefix: str, ttl_ms: int = LONG_MS) -> None:
        self.name = name
        self.store = ClusterStore(config(name, endpoints, prefix, ttl_ms), self.take, self.lost)
        self.keys = Keys.under(prefix)
        self.state = ClusterState(self.keys)
        self.told: list[tuple[int, list[Event]]] = []
        self.changed: list[Changed] = []
        self.losses: list[str] = []

    def take(self, events: list[Event], revision: int) -> None:
        assert not self.told or revision > self.told[-1][0]
        self.changed += self.state.apply(events, revision)
        self.told.append((revision, events))

    def lost(self, reason: str) -> None:
        self.losses.append(reason)

    def presence(self, incarnation: str = "i1") -> Presence:
        return Presence(incarnation, f"tcp://{self.name}:25672", "", 0, "1")

    async def enter(self, incarnation: str = "i1") -> None:
        await self.store.start()
        await self.store.announce(self.presence(incarnation))

    async def put(self, key: str, value: bytes = b"1", *conditions: Unchanged) -> int | None:
        return await self.store.transact(Transaction(conditions, (Put(self.keys.prefix + key, value),)))

    def has(self, revision: int | None) -> bool:
        return revision is not None and self.store.revision >= revision

    @property
    def keys_now(self) -> dict[str, bytes]:
        """What the events that it was told say there is."""
        now: dict[str, bytes] = {}
        for _, events in self.told:
            for event in events:
                now.pop(event.key, None)
                if event.value is not None:
                    now[event.key] = event.value
        return now


@asynccontextmanager
async def node(name: str, endpoints: str, prefix: str, ttl_ms: int = LONG_MS) -> AsyncIterator[Node]:
    one = Node(name, endpoints, prefix, ttl_ms)
    await one.enter()
    try:
        yield one
    finally:
        await one.store.stop()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 # whatever it is, it comes with no event
            await asyncio.sleep(0.01)


def play(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scene)


async def read(endpoints: str, prefix: str, page: int = 1000) -> dict[str, Entry]:
    """What etcd holds, as another reader sees it."""
    client = Etcd(Endpoints().parse(endpoints), 10.0)
    try:
        return dict((await client.read(prefix, page)).entries)
    finally:
        await client.close()


# What happens is told.


def test_all_there_is_comes_first_then_every_revision_in_order(shared: EtcdCluster) -> None:
    chance = random.Random(1)

    async def scene() -> None:
        async with node("a", shared.setting, "order") as a:
            before = [await a.put(f"x{number}") for number in range(5)]
            async with node("b", shared.setting, "order") as b:
                first = b.told[0]
                assert {event.key for event in first[1]} == {
                    a.keys.alive("a"),
                    *(f"order/x{number}" for number in range(5)),
                }
                assert sorted(event.modified for event in first[1])[1:] == before
                revisions = []
                for _ in range(60):
                    key = f"order/x{chance.randrange(8)}"
                    write = Delete(key) if chance.random() < 0.3 else Put(key, chance.randbytes(3))
                    writer = chance.choice((a, b))
                    revisions.append(await writer.store.transact(Transaction((), (write,))))
                await until(lambda: a.store.revision == b.store.revision == revisions[-1])
                told = [revision for revision, _ in b.told[1:]]
                assert [one for one in told if one in revisions] == revisions
                assert told == sorted(set(told))
                assert [one for one in a.told if one[0] in revisions] == [
                    one for one in b.told if one[0] in revisions
                ]
                there = await read(shared.setting, "order/")
                assert b.keys_now == a.keys_now
                assert b.keys_now == {
                    key: entry.value for key, entry in there.items() if not key.startswith("order/turns/")
                }
                assert (a.state.alive, b.state.alive) == ({"a": a.presence(), "b": b.presence()},) * 2
            await until(lambda: a.changed[-1] == AliveChanged("b", None))
            assert (a.losses, b.losses) == ([], [])

    play(scene())


def test_what_happens_before_a_node_is_announced_waits_until_then(shared: EtcdCluster) -> None:
    async def scene() -> None:
        async with node("a", shared.setting, "waits") as a:
            b = Node("b", shared.setting, "waits")
            await b.store.start()
            await a.put("later")
            assert [len(events) for _, events in b.told] == [1]
            await b.store.announce(b.presence())
            await until(lambda: b.keys_now == a.keys_now)
            again = Presence("i1", "tcp://elsewhere:1", "", 0, "1")
            await b.store.announce(again)
            await until(lambda: a.state.alive.get("b") == again)
            await b.store.stop()

    play(scene())


def test_what_happened_while_the_watch_was_cut_is_told_as_it_happened(shared: EtcdCluster) -> None:
    async def scene() -> None:
        with LinkProxy(shared.members[0].port) as link:
            async with (
                node("a", shared.setting, "cut") as a,
                node("b", f"http://{LOOPBACK}:{link.port}", "cut") as b,
            ):
                for _ in range(3):
                    link.refuse()
                    revisions = [await a.put("x", encode(number)) for number in range(5)]
                    link.allow()
                    await until(partial(b.has, revisions[-1]))
                    assert [(revision, len(events)) for revision, events in b.told[-5:]] == [
                        (revision, 1) for revision in revisions
                    ]
                assert b.losses == []

    play(scene())


def test_what_etcd_has_forgotten_meanwhile_is_told_as_differences(shared: EtcdCluster) -> None:
    async def scene() -> None:
        with LinkProxy(shared.members[0].port) as link:
            async with (
                node("a", shared.setting, "forgotten") as a,
                node("b", f"http://{LOOPBACK}:{link.port}", "forgotten") as b,
            ):
                for name in ("stays", "goes", "changes"):
                    last = await a.put(name)
                await until(lambda: b.store.revision == last)
                link.refuse()
                await a.put("comes")
                await a.put("changes", b"2")
                last = await a.store.transact(Transaction((), (Delete("forgotten/goes"),)))
                shared.members[0].ask("kv/compaction", revision=str(last), physical=True)
                link.allow()
                await until(lambda: b.store.revision == last)
                assert b.told[-1][0] == last
                assert {(event.key, event.value) for event in b.told[-1][1]} == {
                    ("forgotten/goes", None),
                    ("forgotten/comes", b"1"),
                    ("forgotten/changes", b"2"),
                }
                last = await a.put("after")
                await until(lambda: a.store.revision == b.store.revision == last)
                assert b.keys_now == a.keys_now

    play(scene())


def test_a_watch_from_a_forgotten_revision_says_so(shared: EtcdCluster) -> None:
    async def scene() -> None:
        async with node("a", shared.setting, "compacted") as a:
            first = await a.put("x")
            last = await a.put("x")
            assert first
            shared.members[0].ask("kv/compaction", revision=str(last), physical=True)
            client = Etcd(Endpoints().parse(shared.setting), 10.0)
            watch = client.watch("compacted/", first - 1)
            with pytest.raises(EtcdCompacted, match=f"has forgotten what was before revision {last}"):
                await anext(watch)
            await client.close()

    play(scene())


def test_what_nobody_can_follow_ends_the_lease_and_is_named(shared: EtcdCluster) -> None:
    async def scene() -> None:
        async with node("a", shared.setting, "unread") as a, node("b", shared.setting, "unread") as b:
            await a.put("epoch", b"not a number")
            await until(lambda: b.losses)
            assert "etcd's key unread/epoch holds what no node" in b.losses[0]
            assert not b.store.holds_lease_now()
            c = Node("c", shared.setting, "unread")
            with pytest.raises(UnreadableState, match="unread/epoch"):
                await c.enter()
            assert not c.store.holds_lease_now()
            await c.store.stop()

    play(scene())


@asynccontextmanager
async def door(
    member: EtcdMember, deaf: Callable[[bytes, int], bool], *, hangs_up: bool
) -> AsyncIterator[str]:
    """A door of etcd that passes requests in, and no answers any more once `deaf` says so, or hangs up then; its URL.

    `deaf` is asked with what was last said in the connection, and how many octets were answered since.
    """
    visits: set[asyncio.Task[None]] = set()

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(LOOPBACK, member.port)
        said, answered, is_deaf = b"", 0, False

        async def answer() -> None:
            nonlocal answered, is_deaf
            with suppress(ConnectionError):
                while octets := await inner.read(65536):
                    is_deaf = is_deaf or deaf(said, answered)
                    answered += len(octets)
                    if not is_deaf:
                        writer.write(octets)
                    elif hangs_up:
                        break
            writer.close()

        answering = asyncio.create_task(answer())
        with suppress(ConnectionError):
            while octets := await reader.read(65536):
                said, answered = octets, 0
                outer.write(octets)
        outer.close()
        await answering

    def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.add(asyncio.create_task(visit(reader, writer)))

    async with await asyncio.start_server(visited, LOOPBACK, 0) as server:
        yield f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*visits)


def test_a_watch_that_tells_nothing_is_given_up_when_it_should_have(shared: EtcdCluster) -> None:
    async def scene() -> None:
        watches = []

        def mute(said: bytes, answered: int) -> bool:
            """The first watch says that it was made, and no more."""
            if b"/v3/watch" in said and not answered:
                watches.append(said)
            return b"/v3/watch" in said and bool(answered) and len(watches) == 1

        async with (
            door(shared.members[0], mute, hangs_up=False) as url,
            node("a", shared.setting, "mute") as a,
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

    play(scene())


# What is written.


def test_a_transaction_is_done_if_its_conditions_hold(shared: EtcdCluster) -> None:
    async def scene() -> None:
        async with node("a", shared.setting, "conditions") as a, node("b", shared.setting, "conditions") as b:
            revision = await a.put("x", b"1", Unchanged("conditions/x", 0))
            assert revision
            assert await b.put("x", b"2", Unchanged("conditions/x", 0)) is None
            assert await b.put("x", b"2", Unchanged("conditions/x", revision)) == revision + 2
            put = Put("conditions/leased", b"1", leased=True)
            await a.store.transact(Transaction((), (put,)))
            written = await read(shared.setting, "conditions/")
            assert written["conditions/x"].value == b"2"
            assert written["conditions/leased"].lease == written[a.keys.alive("a")].lease != 0
            some = tuple(Put(f"conditions/many/{number}", b"") for number in range(OPS_MAX))
            guards = tuple(Unchanged(f"conditions/many/{number}", 0) for number in range(OPS_MAX))
            assert await a.store.transact(Transaction(guards, some))
            delete = Delete("conditions/many/", is_prefix=True)
            last = await a.store.transact(Transaction((), (delete,)))
            await until(lambda: b.store.revision == last)
            assert not [key for key in b.keys_now if "many" in key]
            assert await a.store.transact(Transaction((), (delete,))) == last + 1 if last else False

    play(scene())


def test_what_etcd_refuses_is_told_and_the_next_is_done(shared: EtcdCluster) -> None:
    async def scene() -> None:
        async with node("a", shared.setting, "refused") as a:
            twice = (Put("refused/x", b"1"), Put("refused/x", b"2"))
            with pytest.raises(EtcdRefused, match="duplicate key"):
                await a.store.transact(Transaction((), twice))
            assert await a.put("x", b"3")
            assert (await read(shared.setting, "refused/"))["refused/x"].value == b"3"

    play(scene())


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_transaction_whose_answer_was_lost_is_done_once(shared: EtcdCluster, is_alone: bool) -> None:
    async def scene() -> None:
        lost = []

        def deaf(said: bytes, _: int) -> bool:
            """Every second transaction's answer is lost."""
            if b"/v3/kv/txn" in said:
                lost.append(said)
            return b"/v3/kv/txn" in said and len(lost) % 2 == 0

        prefix = f"lost-{is_alone}"
        async with (
            door(shared.members[0], deaf, hangs_up=True) as url,
            node("b", shared.setting, prefix) as b,
        ):
            a = Node("a", url if is_alone else f"{url},{shared.setting}", prefix, 3_000)
            await a.enter()
            revisions = []
            for number in range(6):
                a.store._etcd.endpoint = Endpoint(url)
                revisions.append(await a.put("x", encode(number)))
            assert None not in revisions
            await until(lambda: b.store.revision >= (revisions[-1] or 0))
            seen = [event for _, events in b.told for event in events if event.key == f"{prefix}/x"]
            assert [(event.modified, event.value) for event in seen] == [
                (revision, encode(number)) for number, revision in enumerate(revisions)
            ]
            assert len(lost) > len(revisions)
            await a.store.stop()

    play(scene())


def test_an_attempt_that_was_given_up_and_comes_late_is_done_before_the_next_or_not_at_all(
    shared: EtcdCluster,
) -> None:
    async def scene() -> None:
        async with node("a", shared.setting, "late") as a:
            await a.put("x", b"1")
            turn, lease_id = a.store._turn, (await read(shared.setting, "late/"))[a.store._turn].lease
            late = Transaction(
                (Unchanged(turn, a.store._turn_modified),),
                (Put("late/x", b"late"), Put(turn, b"3", leased=True)),
            )
            client = Etcd(Endpoints().parse(shared.setting), 10.0)
            await a.put("x", b"2")
            assert await client.transact(late, lease_id) is None
            # And one that overtakes: its turn is over, but it was a turn; the next one finds that out.
            turns = (await read(shared.setting, "late/"))[turn]
            early = Transaction(
                (Unchanged(turn, turns.modified),), (Put("late/x", b"early"), Put(turn, b"old", leased=True))
            )
            assert await client.transact(early, lease_id)
            assert await a.put("x", b"3")
            assert (await read(shared.setting, "late/"))["late/x"].value == b"3"
            assert await a.put("x", b"4", Unchanged("late/y", 7)) is None
            await client.close()

    play(scene())


def test_nothing_is_written_once_the_lease_is_over(shared: EtcdCluster) -> None:
    async def scene() -> None:
        a = Node("a", shared.setting, "over")
        with pytest.raises(LeaseLost):
            await a.put("x")
        await a.enter()
        lease = (await read(shared.setting, "over/"))[a.keys.alive("a")].lease
        shared.members[0].ask("lease/revoke", ID=str(lease))
        with pytest.raises(LeaseLost):
            await a.put("x")
        assert not a.store.holds_lease_now()
        await until(lambda: a.losses)
        assert a.losses == ["etcd has ended the lease"]
        assert await read(shared.setting, "over/") == {}
        await a.store.stop()

    play(scene())


# Who lives.


def test_a_node_that_comes_back_waits_for_the_lease_of_before(shared: EtcdCluster) -> None:
    async def scene() -> None:
        async with node("b", shared.setting, "back") as b:
            killed = Node("a", shared.setting, "back", SHORT_MS)
            await killed.enter("first")
            await until(lambda: "a" in b.state.alive)
            vanish(killed)
            back = Node("a", shared.setting, "back", SHORT_MS)
            await back.enter("second")
            # Each of the two has been seen, and its end: nobody is taken for the other.
            await until(lambda: "a" in b.state.alive)
            seen = [one.presence for one in b.changed if isinstance(one, AliveChanged) and one.name == "a"]
            assert [one and one.incarnation for one in seen] == ["first", None, "second"]
            assert (await read(shared.setting, "back/turns/")).keys() == {b.store._turn, back.store._turn}
            await back.store.stop()
            await killed.store.stop()

    play(scene())


def vanish(one: Node) -> None:
    """What is left of a node that was killed: a lease that nobody keeps alive."""
    lease, one.store._lease = one.store._lease, None
    assert lease is not None
    lease.end()


def test_two_nodes_of_one_name_are_not_both_let_in(shared: EtcdCluster) -> None:
    async def scene() -> None:
        async with node("a", shared.setting, "twins", SHORT_MS) as a:
            twin = Node("a", shared.setting, "twins", SHORT_MS)
            with pytest.raises(NameTaken, match="another node 'a' runs in the cluster below twins/"):
                await twin.enter("second")
            assert a.state.alive["a"].incarnation == "i1"
            await twin.store.stop()

    play(scene())


def test_without_etcd_the_lease_ends_by_the_clock_and_with_it_all_goes_on(own: EtcdCluster) -> None:
    async def scene() -> None:
        member = own.members[0]
        async with node("a", own.setting, "away", SHORT_MS) as a, node("b", own.setting, "away") as b:
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
            back = Node("a", own.setting, "away")
            await back.enter("second")
            await until(lambda: b.state.alive.get("a") == back.presence("second"))
            assert back.store.status()["holds_lease"] is True
            await back.store.stop()

    play(scene())


def test_a_restart_of_etcd_that_is_shorter_than_the_lease_costs_nothing(own: EtcdCluster) -> None:
    async def scene() -> None:
        async with node("a", own.setting, "restart") as a, node("b", own.setting, "restart") as b:
            for number in range(3):
                own.members[0].kill9()
                writing = asyncio.create_task(a.put("x", encode(number)))
                await asyncio.to_thread(own.members[0].restart)
                revision = await writing
                await until(partial(b.has, revision))
                assert b.told[-1][1][0].value == encode(number)
            assert (a.losses, b.losses) == ([], [])

    play(scene())


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
        play(scene(cluster))


def test_all_is_read_page_by_page(shared: EtcdCluster) -> None:
    async def scene() -> None:
        async with node("a", shared.setting, "pages") as a:
            for first in (0, 100):
                puts = tuple(
                    Put(f"pages/{number:03}", encode(number)) for number in range(first, first + 100)
                )
                await a.store.transact(Transaction((), puts))
            whole = await read(shared.setting, "pages/0")
            assert {key: entry.value for key, entry in whole.items()} == {
                f"pages/{number:03}": encode(number) for number in range(100)
            }
            for page in (1, 7, 50, 99, 100):
                assert await read(shared.setting, "pages/0", page) == whole

    play(scene())


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
