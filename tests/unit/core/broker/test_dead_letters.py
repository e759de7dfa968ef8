"""core.broker.dead_letters: under which headers a dead message goes where, and when it goes nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from leveret.core.broker import routing
from leveret.core.broker.broker import Broker
from leveret.core.broker.dead_letters import RoutedLetters, Taken, route_dead_letters
from leveret.core.broker.deaths import Death
from leveret.core.broker.deferred_work import AT_ONCE
from leveret.core.queues.dead_lettering import NOT_STORED, DeadLetters
from leveret.core.queues.head import Head, head_of_octets, make_head
from leveret.core.queues.messages import Run, alike, joined
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import QueueSettings
from leveret.model import definitions as d


def head_of(**properties: Any) -> Head:
    octets = header.ContentHeader(body_size=3, properties=commands.Basic.Properties(**properties)).marshal()
    return make_head(b"e", b"k", octets)


def dead_letter_head(head: Head, *death: Any) -> Head:
    dead = Death(*death).of(head.route, head.sized_header)
    return head_of_octets(dead.route, dead.header[4:])


@pytest.mark.parametrize(
    ("reason", "comes_back"), [("expired", False), ("maxlen", False), ("rejected", True)]
)
def test_a_message_goes_round_to_where_it_died_only_if_somebody_rejects_it_on_the_way(
    reason: str, comes_back: bool
) -> None:
    broker = Broker(lambda queue, offset: [])
    for entity in (
        d.Vhost(name="v"),
        d.Exchange(vhost="v", name="dlx", type="fanout"),
        d.Queue(vhost="v", name="q"),
    ):
        broker.apply(d.Put(entity))
    broker.apply(d.Put(d.Binding(vhost="v", source="dlx", destination="q")))
    queue: Queue = broker.queues["v", "q"]
    queue.configure(QueueSettings(dead_letter_exchange="dlx"))
    once = dead_letter_head(head_of(), "q", reason, 7, "dlx", None)
    letters = DeadLetters([Run(0, alike(once, [b"abc"]))], reason)
    published = route_dead_letters(broker, queue, letters, 8)
    assert published.takers == ({queue: [Taken([0], 1)]} if comes_back else {})
    assert not published.needs_repeat
    assert len(queue.gathered) == comes_back


def test_a_dead_letter_whose_key_is_matched_in_too_many_ways_goes_to_no_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error would take its queue down."""
    monkeypatch.setattr(routing, "VISITS_MAX", 1)
    broker = Broker(lambda queue, offset: [])
    for entity in (d.Vhost(name="v"), d.Queue(vhost="v", name="q")):
        broker.apply(d.Put(entity))
    broker.apply(d.Put(d.Binding(vhost="v", source="amq.topic", destination="q", routing_key="#.a.#")))
    queue: Queue = broker.queues["v", "q"]
    queue.configure(QueueSettings(dead_letter_exchange="amq.topic"))
    letters = DeadLetters([Run(0, alike(head_of(), [b"abc"]))], "rejected")
    assert route_dead_letters(broker, queue, letters, 8) == RoutedLetters(queue, letters, {})


@given(st.data())
def test_only_what_a_target_did_not_take_is_published_again_and_only_there(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    firsts = [data.draw(st.sampled_from([NOT_STORED, 100 * number])) for number in range(len(sizes))]
    bodies = [b"%d" % number for number in range(sum(sizes))]
    left = iter(bodies)
    runs = [
        Run(first, alike(head_of(), [next(left) for _ in range(size)]))
        for first, size in zip(firsts, sizes, strict=True)
    ]
    offsets = [
        run.first if run.first == NOT_STORED else run.first + at for run in runs for at in range(len(run))
    ]
    one, other, early = (Queue(d.Queue(vhost="v", name=name), lambda queue, offset: []) for name in "abc")
    has: list[set[Queue]] = [set() for _ in bodies]
    is_missing = [False] * len(bodies)
    keeps = data.draw(st.booleans())
    takers: dict[Queue, list[Taken]] = {}
    refused: dict[Queue, list[tuple[int, int]]] = {}
    no_room: dict[Queue, list[tuple[int, int]]] = {}
    for target in (one, other):
        place = data.draw(st.integers(0, 9))
        for start in range(len(bodies)):
            # Some are dropped for want of room.
            if data.draw(st.booleans()):
                place += 1
                takers.setdefault(target, []).append(Taken([start], place))
                has[start].add(target)
                if data.draw(st.booleans()):
                    refused.setdefault(target, []).append((place - 1, place))
                    has[start].discard(target)
                    is_missing[start] = True
            elif keeps:
                no_room.setdefault(target, []).append((start, start + 1))
                is_missing[start] = True
    letters = DeadLetters(runs, "expired", frozenset([early]))
    taken, again = RoutedLetters(one, letters, takers, keeps, (), no_room).parted(refused)
    found: dict[tuple[bytes, int], set[Any] | None] = {
        (body, run.first if run.first == NOT_STORED else run.first + at): None
        for run in taken
        for at, body in enumerate(run.bodies)
    }
    for each in again:
        assert early in each.done
        for run in each.runs:
            for at, body in enumerate(run.bodies):
                key = body, run.first if run.first == NOT_STORED else run.first + at
                assert key not in found
                found[key] = {*each.done} - {early}
    assert found == {
        (body, offset): targets if again else None
        for body, offset, targets, again in zip(bodies, offsets, has, is_missing, strict=True)
    }


def test_a_message_dies_while_its_exchange_is_deleted_step_by_step() -> None:
    broker = Broker(lambda queue, offset: [])
    broker.apply(d.Put(d.Vhost(name="v")))
    for name in ("dlx", "before"):
        broker.apply(d.Put(d.Exchange(vhost="v", name=name, type="direct")))
    broker.apply(d.Put(d.Queue(vhost="v", name="q")))
    for number in range(2 * AT_ONCE):
        to_exchange = d.Binding(
            vhost="v",
            source="before",
            destination="dlx",
            destination_type="exchange",
            routing_key=str(number),
        )
        broker.apply(d.Put(to_exchange))
    queue = broker.queues["v", "q"]
    queue.configure(QueueSettings(dead_letter_exchange="dlx"))
    broker.deletions.delete_exchange("v", "dlx", lambda is_there: None, if_unused=True)
    assert broker.deferred_work
    letters = DeadLetters([Run(0, alike(head_of(), [b"abc"]))], "expired")
    assert route_dead_letters(broker, queue, letters, 8).takers == {}
    assert broker.find_exchange("v", "dlx") is None


HEADERS = [{}, {"a": 1}, {"x-death": [{"queue": "full", "reason": "expired", "count": 4}]}]


@given(st.data())
def test_letters_that_are_published_together_go_where_each_would_go_alone(data: st.DataObject) -> None:
    """Targets with and without room, one that has them already, one by the headers; messages alike and not."""

    def world() -> tuple[Broker, Queue]:
        broker = Broker(lambda queue, offset: [])
        names = ["q", "all", "some", "full", "early"]
        entities: list[d.Vhost | d.Exchange | d.Queue | d.Binding] = [
            d.Vhost(name="v"),
            d.Exchange(vhost="v", name="dlx", type="topic"),
            d.Exchange(vhost="v", name="by", type="headers"),
            *(d.Queue(vhost="v", name=name) for name in names),
            d.Binding(vhost="v", source="dlx", destination="all", routing_key="#"),
            d.Binding(vhost="v", source="dlx", destination="full", routing_key="#"),
            d.Binding(vhost="v", source="dlx", destination="early", routing_key="#"),
            d.Binding(vhost="v", source="dlx", destination="q", routing_key="k"),
            d.Binding(
                vhost="v", source="dlx", destination="by", destination_type="exchange", routing_key="*"
            ),
            d.Binding(vhost="v", source="by", destination="some", arguments={"a": 1}),
        ]
        for entity in entities:
            broker.apply(d.Put(entity))
        broker.queues["v", "q"].configure(QueueSettings(dead_letter_exchange="dlx"))
        broker.queues["v", "full"].configure(QueueSettings(max_length=room, overflow="reject-publish"))
        return broker, broker.queues["v", "q"]

    room = data.draw(st.integers(0, 9))
    reason = data.draw(st.sampled_from(["expired", "rejected"]))
    messages = st.builds(
        lambda key, headers, priority: make_head(
            b"e", key, head_of(headers=headers, priority=priority).header
        ),
        st.sampled_from([b"k", b"l"]),
        st.sampled_from(HEADERS),
        st.sampled_from([None, 3]),
    )
    runs: list[Run] = []
    for head, count in data.draw(st.lists(st.tuples(messages, st.integers(1, 3)), min_size=1, max_size=12)):
        first = runs[-1].end if runs else 7
        runs.append(Run(first, alike(head, [b"%03d" % (first + at) for at in range(count)])))
    columns = [
        Run(first, part)
        for part in joined([run.messages for run in runs])
        for first in [next(run.first for run in runs if run.messages.bodies[0] == part.bodies[0])]
    ]
    taken: list[dict[str, list[tuple[bytes, bytes, int]]]] = []
    placed: list[dict[str, list[tuple[int, int]]]] = []
    for together in (True, False):
        broker, queue = world()
        done = frozenset([broker.queues["v", "early"]])
        groups = (
            [columns]
            if together
            else [[run.cut(at, at + 1)] for run in runs for at in range(run.first, run.end)]
        )
        places: dict[str, list[tuple[int, int]]] = {}
        start = 0
        for group in groups:
            found = route_dead_letters(broker, queue, DeadLetters(group, reason, done), 8)
            for target, takes in found.takers.items():
                for each in takes:
                    places.setdefault(target.key[1], []).extend(
                        (start + index, each.before + at) for at, index in enumerate(each.indices, 1)
                    )
            start += sum(map(len, group))
        placed.append(places)
        taken.append(
            {
                name: [
                    (head.entry, body, part.priority)
                    for part in each.gathered.take()
                    for head, bodies in part.by_head()
                    for body in bodies
                ]
                for (_, name), each in broker.queues.items()
            }
        )
    assert taken[0] == taken[1]
    assert placed[0] == placed[1]
