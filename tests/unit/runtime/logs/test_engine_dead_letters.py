"""The flush and the dead: whatever a message, a queue or a disk is like, nobody's death stops the node or gets lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.queues.head import make_head
from leveret.core.queues.messages import alike
from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.logs import engine as engine_module
from leveret.runtime.logs import queue_store
from leveret.testing.network.waiting import until
from leveret.wire import properties as props
from leveret.wire import tables
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import TAGGED, Site


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "RETRY_MS", 100)


async def dying_site(directory: Path) -> Site:
    """A node in whose vhost `v` are the queues `letter` and `q`, whose dead go there."""
    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED), d.Put(queue("grave")), d.Put(dying("q")))
    return site


def queue(name: str, **arguments: Any) -> d.Queue:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return d.Queue(name=name, vhost="v", durable=True, arguments=named)


def dying(name: str, **arguments: Any) -> d.Queue:
    return queue(name, dead_letter_exchange="", dead_letter_routing_key="grave", **arguments)


async def reject(site: Site, name: str = "q") -> None:
    """Take and refuse all that is ready."""
    held = site.queue(name)
    while held.ready_count:
        for run in held.take(100)[0]:
            held.reject(run.first, len(run.bodies))
    await site.touched(name)


async def test_what_was_rejected_is_in_its_grave_and_no_longer_where_it_died(directory: Path) -> None:
    site = await dying_site(directory)
    bodies = await site.publish(50)
    await reject(site)
    assert site.contents("grave") == bodies
    assert (site.queue().message_count, site.queue().unacked_count) == (0, 0)
    await site.restart()
    assert (site.contents("grave"), site.contents()) == (bodies, [])


async def test_a_dead_letter_stays_where_it_died_until_it_is_durable_in_its_grave(directory: Path) -> None:
    site = await dying_site(directory)
    bodies = await site.publish(3)
    died = site.queue()
    for run in died.take(100)[0]:
        died.reject(run.first, len(run.bodies))
    site.node.broker.dirty[died] = None
    # Nothing is awaited: no fdatasync can have ended.
    site.node.engine.flush()
    assert (site.contents("grave"), site.contents()) == (bodies, bodies)
    await site.settle()
    await site.settle()
    assert (site.contents("grave"), site.contents()) == (bodies, [])


class LostMirrors:
    """The port to other nodes: the mirrors of the queue `grave` have nothing, the first few times."""

    def __init__(self, *answers: bool) -> None:
        self.answers = [*answers]

    def concerns(self, queue: object) -> bool:
        return isinstance(queue, Queue) and queue.key == ("v", "grave")

    def when_taken(self, queues: Any, part: Callable[[], Callable[[bool], None]]) -> None:
        part()(self.answers.pop(0))

    def when_kept(self, batch: Any, part: Callable[[], Callable[[bool], None]]) -> None:
        part()(True)

    def is_overloaded(self) -> bool:
        return False

    def flushed(self, queue: Queue) -> None:
        pass


async def test_dead_letters_whose_grave_has_another_leader_without_them_are_published_again(
    directory: Path,
) -> None:
    """Otherwise their originals would be unsettled for ever."""
    site = await dying_site(directory)
    port = LostMirrors(False, True)
    site.node.engine.replication_port = port  # type: ignore[assignment]  # a stand-in
    bodies = await site.publish(5)
    await reject(site)
    assert site.contents() == bodies
    await until(lambda: site.contents() == [], "they are settled")
    assert (site.contents("grave"), port.answers) == (bodies * 2, [])


def _header(properties: dict[int, bytes], body_bytes: int) -> bytes:
    return props.join({props.DELIVERY_MODE: b"\2", **properties}, body_bytes)


DEATH = tables.table(
    {
        b"count": tables.long_integer(2**63 - 1),
        b"reason": tables.long_string(b"rejected"),
        b"queue": tables.long_string(b"strange"),
    }
)
STRANGE = {
    "a table that is none": b"\x05abc",
    "a value of no type": tables.join({b"a": b"?"}),
    "deaths that are no tables": tables.join({b"x-death": tables.array([b"F\0\0\0\3\x09ab"])}),
    "as many deaths as can be": tables.join({b"x-death": tables.array([DEATH])}),
    "an unsigned count": tables.join({b"x-death": tables.array([DEATH.replace(b"l\x7f", b"L\xff")])}),
    "copies to no text": tables.join({b"CC": tables.array([tables.long_string(b"\xff\xfe")])}),
    "a date that never was": tables.join({b"x": b"T" + b"\xff" * 8}),
}


@pytest.mark.parametrize("headers", STRANGE.values(), ids=list(STRANGE))
@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_strange_headers_stop_nobody_and_lose_nothing(
    directory: Path, headers: bytes, kind: str
) -> None:
    site = await dying_site(directory)
    await site.apply(d.Put(dying("strange", queue_type=kind)))
    site.queue("strange").gathered.add(
        alike(make_head(b"", b"strange", _header({props.HEADERS: headers}, 3)), [b"abc"])
    )
    await site.touched("strange")
    await reject(site, "strange")
    assert site.contents("grave") == [b"abc"]
    assert site.queue("strange").message_count == 0


async def test_a_routing_key_that_is_no_text_stops_nobody(directory: Path) -> None:
    site = await dying_site(directory)
    await site.apply(d.Put(queue("own-key", dead_letter_exchange="")))
    site.queue("own-key").gathered.add(alike(make_head(b"", b"\xff\xfe", _header({}, 3)), [b"abc"]))
    await site.touched("own-key")
    await reject(site, "own-key")
    assert site.queue("own-key").message_count == 0


async def test_a_dead_letter_routing_key_longer_than_a_short_string_stops_nobody(directory: Path) -> None:
    site = await dying_site(directory)
    long = queue("long", dead_letter_exchange="", dead_letter_routing_key="k" * 300)
    await site.apply(d.Put(long))
    await site.publish(1, "long")
    await reject(site, "long")
    assert site.queue("long").message_count == 0


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60))
def test_any_headers_at_all_stop_nobody(headers: bytes) -> None:
    async def play(directory: Path) -> None:
        site = await dying_site(directory)
        site.queue().gathered.add(alike(make_head(b"", b"q", _header({props.HEADERS: headers}, 3)), [b"abc"]))
        await site.touched()
        await reject(site)
        assert site.contents("grave") == [b"abc"]
        await site.kill()

    with scratch() as directory:
        asyncio.run(play(directory))


async def test_a_death_whose_grave_the_disk_refuses_happens_once_the_disk_takes_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await dying_site(directory)
    bodies = await site.publish(3)
    store = site.node.engine._queues
    append = store.append_messages
    refused: list[object] = []

    def refuse(queue: Queue) -> None:
        if queue.key[1] == "grave" and queue.gathered:
            refused.append(queue.gathered.take())
            raise StorageError("no space left on device")
        append(queue)

    with monkeypatch.context() as broken:
        broken.setattr(store, "append_messages", refuse)
        await site.apply(d.Put(policy({"message-ttl": 1})))
        await until(lambda: len(refused) > 2)
        assert site.contents() == bodies, "nothing is lost while the disk refuses"
    await until(lambda: site.contents("grave") == bodies)
    await until(lambda: site.queue().message_count == 0)


async def test_a_grave_of_which_the_disk_takes_the_first_chunk_only_gets_the_rest_later(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_store, "ENTRIES_MAX", 10)
    site = await dying_site(directory)
    bodies = await site.publish(25)
    log, appends = site.node.log_store.log(site.queue("grave")), 0
    append = log.append

    def refuse_the_second(*arguments: Any, **named: Any) -> Any:
        nonlocal appends
        appends += 1
        if appends == 2:
            raise StorageError("no room")
        return append(*arguments, **named)

    monkeypatch.setattr(log, "append", refuse_the_second)
    await reject(site)
    await until(lambda: not site.queue().message_count)
    assert appends > 2
    assert sorted(site.contents("grave")) == sorted(bodies)


def policy(definition: dict[str, Any], pattern: str = "^q$") -> d.Policy:
    return d.Policy(vhost="v", name="p", pattern=pattern, definition=definition)


@pytest.mark.parametrize("definition", [{"message-ttl": 1}, {"max-length": 0}, {"max-length-bytes": 0}])
async def test_a_policy_takes_effect_on_what_waits_already(
    directory: Path, definition: dict[str, Any]
) -> None:
    site = await dying_site(directory)
    bodies = await site.publish(20)
    await site.apply(d.Put(policy(definition)))
    await until(lambda: site.contents("grave") == bodies)


async def test_a_queue_expires_by_policy_only_after_the_time_from_then_on(directory: Path) -> None:
    site = await dying_site(directory)
    await asyncio.sleep(0.15)
    began_s = asyncio.get_running_loop().time()
    await site.apply(d.Put(policy({"expires": 100})))
    await until(lambda: ("v", "q") not in site.node.broker.queues)
    assert asyncio.get_running_loop().time() - began_s >= 0.1


async def test_times_go_on_after_a_restart_though_nobody_touches_the_queues(directory: Path) -> None:
    site = await dying_site(directory)
    await site.apply(d.Put(dying("ttl", message_ttl=300)), d.Put(queue("passing", expires=300)))
    bodies = await site.publish(5, "ttl")
    await site.restart()
    await until(lambda: site.contents("grave") == bodies)
    await until(lambda: ("v", "passing") not in site.node.broker.queues)


async def test_a_queue_that_cannot_be_read_for_now_is_tried_again_and_not_all_the_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await dying_site(directory)
    await site.apply(d.Put(dying("ttl", message_ttl=1)))
    held = site.queue("ttl")
    tries = 0

    def refuse(now_ms: int, before: int) -> None:
        nonlocal tries
        tries += 1
        raise StorageError("input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(held, "expire", refuse)
        bodies = await site.publish(3, "ttl")
        await asyncio.sleep(0.3)
        assert 1 <= tries < 5
    await until(lambda: site.contents("grave") == bodies)


async def test_a_damaged_grave_takes_nothing_and_loses_nothing(directory: Path) -> None:
    site = await dying_site(directory)
    await site.apply(
        d.Put(d.Exchange(vhost="v", name="dlx", type="fanout", durable=True)),
        d.Put(queue("other")),
        d.Put(queue("two", dead_letter_exchange="dlx")),
        *(d.Put(binding(each)) for each in ("grave", "other")),
    )
    bodies = await site.publish(4, "two")
    site.queue("grave").damage = "a damaged chunk"
    await reject(site, "two")
    for _ in range(5):
        await site.touched("two")
    assert site.contents("other") == bodies, "who is not damaged gets it, once"
    assert site.contents("two") == bodies, "it stays where it died until all have it"


def binding(destination: str) -> d.Binding:
    return d.Binding(source="dlx", vhost="v", destination=destination, routing_key="")


async def test_a_queue_whose_log_turns_out_damaged_takes_nothing_else_down(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await dying_site(directory)
    await site.publish(3)
    held = site.queue()
    runs, _ = held.take(3)

    def damaged(first: int) -> Any:
        raise Corrupt("log", "segment", first, 0, "crc")

    monkeypatch.setattr(held.backlog, "find", damaged)
    for run in runs:
        held.reject(run.first, len(run.bodies))
    await site.touched()
    assert held.damage is not None
    assert site.contents("grave") == []


async def test_a_target_that_refuses_when_it_is_full_takes_no_more_dead_than_fit(directory: Path) -> None:
    site = await dying_site(directory)
    await site.apply(
        d.Put(queue("small", max_length=5, overflow="reject-publish")),
        d.Put(queue("to-small", dead_letter_exchange="", dead_letter_routing_key="small")),
    )
    bodies = await site.publish(50, "to-small")
    await reject(site, "to-small")
    assert site.contents("small") == bodies[:5]
    assert site.queue("to-small").message_count == 0


async def test_one_by_one_rejected_messages_die_together(directory: Path) -> None:
    """One letter for a run of them: a hundred thousand cost no more than their bodies."""

    site = await dying_site(directory)
    bodies = await site.publish(500)
    held = site.queue()
    for run in held.take(500)[0]:
        for offset in range(run.first, run.end):
            held.reject(offset, 1)
    assert len(held.dead_lettering.declared_dead) == 1
    await site.touched()
    assert site.contents("grave") == bodies
