"""runtime.schema_sync.apply: a delta is applied to a real node, and takes no message along that nobody gave up."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from pathlib import Path

import pytest

from leveret.core.broker.routing import no_headers
from leveret.core.queues.messages import alike
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.schema.delta import HOLDS, Delta, Key, LocalEntities, delta
from leveret.model.definitions import (
    AnyEntity,
    Binding,
    Definitions,
    Delete,
    Exchange,
    Policy,
    Put,
    Queue,
    User,
    Vhost,
)
from leveret.model.errors import StorageError
from leveret.runtime.logs.log_home import take_down
from leveret.runtime.schema_sync.apply import (
    CHANGES_PER_SLICE,
    DeltaOutcome,
    QueuesWithMessages,
    apply,
    exclusive_in,
    rows_of,
)
from tests.unit.runtime.collecting.site import HEAD, Site

CHANGED = {"x-max-length": 700}
CONFLICT = f"queues v/q: {HOLDS}"


def definitions(*entities: AnyEntity) -> Definitions:
    made = Definitions()
    for entity in entities:
        made.apply(Put(entity))
    return made


def found_by(site: Site, *theirs: AnyEntity, force: bool = False) -> Delta:
    broker, theirs_all = site.node.broker, definitions(*theirs)
    wanted = {kind: theirs_all.by_kind[kind] for kind in ("exchanges", "queues", "bindings")}
    holding: Container[Key] = frozenset() if force else QueuesWithMessages(broker)
    return delta(broker.definitions, wanted, LocalEntities(), holding, exclusive_in(broker))


async def follow(site: Site, *theirs: AnyEntity, force: bool = False) -> DeltaOutcome:
    holding: Container[Key] = frozenset() if force else QueuesWithMessages(site.node.broker)
    done = await apply(site.node.broker, found_by(site, *theirs, force=force), holding, site.node.flush)
    await site.settle()
    return done


# -- queues that hold messages --------------------------------------------------------------------


async def test_what_is_published_while_a_delta_is_applied_stays_with_its_queue(directory: Path) -> None:
    site = await Site.started(directory)
    names = [*(f"e{number}" for number in range(CHANGES_PER_SLICE)), "q"]
    await site.apply(Put(Vhost(name="v")), *(Put(Queue(vhost="v", name=name)) for name in names))
    found = found_by(site, *(Queue(vhost="v", name=name, arguments=CHANGED) for name in names))
    assert found.conflicts == []
    publishing = asyncio.ensure_future(site.publish(3))
    done = await apply(site.node.broker, found, QueuesWithMessages(site.node.broker), site.node.flush)
    bodies = await publishing
    assert (done.puts, done.deletes, done.conflicts) == (len(names) - 1, len(names) - 1, [CONFLICT])
    await site.settle()
    await site.restart()
    assert site.contents() == bodies
    assert site.queue().definition.arguments == {}
    assert site.queue("e0").definition.arguments == CHANGED


async def test_what_waits_for_the_flush_stays_with_its_queue_until_it_is_forced(directory: Path) -> None:
    site = await Site.started(directory)
    await site.apply(Put(Vhost(name="v")), Put(Queue(vhost="v", name="q")))
    site.queue().gathered.add(alike(HEAD, [b"%08d" % 1]))
    site.node.broker.dirty[site.queue()] = None
    wanted = Queue(vhost="v", name="q", arguments=CHANGED)
    done = await follow(site, wanted)
    assert (done.changes, done.conflicts) == ([], [CONFLICT])
    assert site.contents() == [b"%08d" % 1]
    forced = await follow(site, wanted, force=True)
    assert (forced.puts, forced.deletes, forced.conflicts) == (1, 1, [])
    assert site.contents() == []


async def test_a_queue_that_is_down_keeps_its_log(directory: Path) -> None:
    site = await Site.started(directory)
    await site.apply(Put(Vhost(name="v")), Put(Queue(vhost="v", name="q")))
    bodies = await site.publish(20)
    await site.kill()
    segment = next((directory / "queues").rglob("*.segment"))
    intact = segment.read_bytes()
    segment.write_bytes(intact[:60] + bytes([intact[60] ^ 1]) + intact[61:])
    await site.start()
    assert site.queue().damage is not None
    wanted = Queue(vhost="v", name="q", arguments=CHANGED)
    assert (await follow(site, wanted)).conflicts == [CONFLICT]
    await site.restart()
    await site.kill()
    segment.write_bytes(intact)
    await site.start()
    assert site.contents() == bodies
    take_down(site.queue(), StorageError("while it is served"))
    assert (await follow(site, wanted)).conflicts == [CONFLICT]


def test_a_queue_of_another_node_may_hold_what_was_not_told() -> None:
    assert RemoteQueue(Queue(vhost="v", name="q"), "other@node").may_hold_messages


async def test_no_message_is_lost_to_a_limit_that_never_was_in_force_at_the_upstream(directory: Path) -> None:
    def limit(name: str, length: int, priority: int) -> Policy:
        definition = {"max-length": length}
        return Policy(vhost="v", name=name, pattern="^q", definition=definition, priority=priority)

    site = await Site.started(directory)
    broker, others = (
        site.node.broker,
        [User(name=f"u{n}", password_hash="") for n in range(CHANGES_PER_SLICE)],
    )
    shadowed = limit("a", length=1, priority=0), limit("b", length=100, priority=1)
    await site.apply(Put(Vhost(name="v")), Put(Queue(vhost="v", name="q")), *map(Put, shadowed))
    bodies = await site.publish(3)
    theirs_all = definitions(limit("a", length=100, priority=0), *others).by_kind
    wanted = {kind: theirs_all[kind] for kind in ("users", "policies")}
    found = delta(broker.definitions, wanted, LocalEntities())
    applying = asyncio.ensure_future(apply(broker, found, QueuesWithMessages(broker), site.node.flush))
    while not applying.done():
        await asyncio.sleep(0)
        site.node.engine.flush()
    assert applying.result().refused == []
    await site.settle()
    assert (site.queue().policy, site.contents()) == ("a", bodies)


# -- exclusive queues -----------------------------------------------------------------------------


async def test_a_connection_keeps_its_exclusive_queues_and_what_they_are_bound_to(directory: Path) -> None:
    site = await Site.started(directory)
    broker = site.node.broker
    await site.apply(Put(Vhost(name="v")), Put(Exchange(vhost="v", name="x", type="direct")))
    broker.declare_queue(Queue(vhost="v", name="own"), owner=site)
    broker.bind(Binding(vhost="v", source="x", destination="own", routing_key="k"))
    theirs = (
        Exchange(vhost="v", name="x", type="topic"),
        Queue(vhost="v", name="own"),
        Binding(vhost="v", source="x", destination="own", routing_key="theirs"),
    )
    reason = "queues v/own: an exclusive queue of a connection has its name"
    assert (await follow(site, *theirs)).conflicts == [reason]
    assert [queue.key for queue in broker.route("v", "x", "k", no_headers)] == [("v", "own")]
    again = await follow(site, *theirs)
    assert (again.puts, again.deletes, again.conflicts) == (0, 0, [reason])
    broker.delete_queue(broker.queues["v", "own"])
    assert (await follow(site, *theirs)).puts == 2


async def test_what_a_connection_bound_while_a_delta_was_applied_is_bound_to_the_replaced_exchange(
    directory: Path,
) -> None:
    site = await Site.started(directory)
    broker, x = site.node.broker, Exchange(vhost="v", name="x", type="direct")
    gone = [Queue(vhost="v", name=f"gone{number}") for number in range(CHANGES_PER_SLICE)]
    await site.apply(Put(Vhost(name="v")), Put(x), *map(Put, gone))
    found = found_by(site, Exchange(vhost="v", name="x", type="topic"))

    def bind() -> None:
        assert broker.exchange("v", "x").type == "direct"
        broker.declare_queue(Queue(vhost="v", name="own"), owner=site)
        broker.bind(Binding(vhost="v", source="x", destination="own", routing_key="k"))
        broker.bind(Binding(vhost="v", source="amq.topic", destination="x", destination_type="exchange"))

    asyncio.get_running_loop().call_soon(bind)
    assert (await apply(broker, found, QueuesWithMessages(broker), site.node.flush)).refused == []
    assert broker.exchange("v", "x").type == "topic"
    assert [queue.key for queue in broker.route("v", "x", "k", no_headers)] == [("v", "own")]
    assert len(broker.topology("v").bindings_into("exchange", "x")) == 1


# -- what cannot be had here ----------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
async def test_what_cannot_be_had_here_is_refused_and_what_there_is_instead_stays(
    directory: Path, force: bool
) -> None:
    site = await Site.started(directory)
    x, q = Exchange(vhost="v", name="x", type="topic"), Queue(vhost="v", name="q")
    to_q = Binding(vhost="v", source="x", destination="q")
    await site.apply(Put(Vhost(name="v")), Put(x), Put(q), Put(to_q))
    bodies = await site.publish(3)
    theirs = (
        Exchange(vhost="v", name="x", type="x-delayed-message"),
        Queue(vhost="v", name="q", arguments={"x-queue-type": "x-custom"}),
        to_q,
    )
    done = await follow(site, *theirs, force=force)
    assert (done.puts, done.deletes, done.conflicts) == (0, 0, [])
    assert [text.partition(":")[0] for text in done.refused] == ["exchanges v/x", "queues v/q"]
    assert "unknown exchange type 'x-delayed-message'" in done.refused[0]
    assert site.contents() == bodies
    assert [queue.key for queue in site.node.broker.route("v", "x", "", no_headers)] == [("v", "q")]
    rows = list(rows_of(found_by(site, *theirs), site.node.broker.definitions, ()))
    assert [(row["action"], row["entity"]) for row in rows] == [("refuse", "v/x"), ("refuse", "v/q")]


def test_what_is_nested_too_deep_is_refused_before_what_is_there_is_deleted_for_it() -> None:
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    x, changed = (Exchange(vhost="v", name="x", type="topic", arguments={"a": a}) for a in (1, deep))
    found = delta(definitions(x), definitions(changed).by_kind, LocalEntities())
    assert found.steps == []
    assert [(each.key, "levels deep" in each.reason) for each in found.refused] == [(x.key, True)]


# -- for an operator ------------------------------------------------------------------------------


def _rows(own: list[AnyEntity], theirs: list[AnyEntity]) -> list[tuple[str, str, list[str]]]:
    existing, upstream = definitions(*own), definitions(*theirs)
    rows = rows_of(delta(existing, upstream.by_kind, LocalEntities()), existing, ())
    return [(row["action"], row["kind"], row["fields"]) for row in rows]


def test_a_changed_password_is_told_beside_other_changes() -> None:
    own = User(name="u", password_hash="a")
    for theirs, fields in [
        (User(name="u", password_hash="b", tags=("x",)), ["password_hash", "tags"]),
        (User(name="u", password_hash="b"), ["password_hash"]),
        (User(name="u", password_hash="a", tags=("x",)), ["tags"]),
    ]:
        assert _rows([own], [theirs]) == [("change", "users", fields)]


def test_what_only_goes_along_with_a_replaced_exchange_is_no_row() -> None:
    x, q = Exchange(vhost="v", name="x", type="topic"), Queue(vhost="v", name="q")
    to_q = Binding(vhost="v", source="x", destination="q")
    changed = Exchange(vhost="v", name="x", type="topic", arguments={"a": True})
    own: list[AnyEntity] = [Exchange(vhost="v", name="x", type="topic", arguments={"a": 1}), q, to_q]
    assert _rows(own, [changed, q, to_q]) == [("replace", "exchanges", ["arguments"])]
    found = delta(definitions(x, q, to_q), definitions(changed, q, to_q).by_kind, LocalEntities())
    assert found.changes == [Delete("exchanges", x.key), Put(changed), Put(to_q)]
