"""core.broker.dead_letters: under which headers a dead message goes where, and when it goes nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from leveret.core.broker.broker import Broker
from leveret.core.broker.dead_letters import RoutedLetters, Taken, dead_letter, route_dead_letters
from leveret.core.broker.deferred_work import AT_ONCE
from leveret.core.queues.dead_lettering import NOT_STORED, DeadLetters
from leveret.core.queues.head import Head, make_head
from leveret.core.queues.messages import Run, alike
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import QueueSettings
from leveret.model import definitions as d
from leveret.wire import properties as props


def head_of(**properties: Any) -> Head:
    octets = header.ContentHeader(body_size=3, properties=commands.Basic.Properties(**properties)).marshal()
    return make_head(b"e", b"k", octets)


def dead_letter_head(*arguments: Any) -> Head:
    return dead_letter(*arguments)[0]


def test_a_dead_message_has_no_time_to_live_any_more_and_says_which_it_had() -> None:
    dead = dead_letter_head(head_of(expiration="60000"), "q", "expired", 7, "dlx", None)
    assert (dead.exchange, dead.routing_key, dead.expiration_ms) == (b"dlx", b"k", None)
    assert props.EXPIRATION not in props.split(dead.header)
    [death] = props.headers_of(dead.header)["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == ("q", "expired", 1)
    assert death["original-expiration"] == "60000"


def test_a_message_that_dies_again_of_the_same_is_counted_where_it_died_before() -> None:
    again = dead_letter_head(
        dead_letter_head(head_of(), "q", "expired", 7, "dlx", None), "q", "expired", 8, "dlx", None
    )
    assert [death["count"] for death in props.headers_of(again.header)["x-death"]] == [2]
    elsewhere = dead_letter_head(again, "r", "maxlen", 9, "dlx", "other")
    assert elsewhere.routing_key == b"other"
    found = props.headers_of(elsewhere.header)
    assert [(death["queue"], death["count"]) for death in found["x-death"]] == [("r", 1), ("q", 2)]
    assert (found["x-first-death-queue"], found["x-first-death-reason"]) == ("q", "expired")


@pytest.mark.parametrize(
    ("sent", "first"),
    [({"x-first-death-queue": "mine"}, "q"), ({"x-death": [{"queue": "r", "reason": "expired"}]}, None)],
)
def test_the_first_death_is_noted_where_no_earlier_one_is_known(
    sent: dict[str, Any], first: str | None
) -> None:
    """As RabbitMQ 3.10.8 has it, whatever a publisher wrote."""
    dead = dead_letter_head(head_of(headers=sent), "q", "expired", 7, "dlx", None)
    assert props.headers_of(dead.header).get("x-first-death-queue") == first


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
    assert published == RoutedLetters(queue, letters, {queue: [Taken(0, 1, 1)]} if comes_back else {})
    assert len(queue.gathered) == comes_back


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
    missing: list[set[Queue]] = [set() for _ in bodies]
    takers: dict[Queue, list[Taken]] = {}
    refused: dict[Queue, list[tuple[int, int]]] = {}
    for target in (one, other):
        place = data.draw(st.integers(0, 9))
        for start in range(len(bodies)):
            # Some are dropped for want of room.
            if data.draw(st.booleans()):
                place += 1
                takers.setdefault(target, []).append(Taken(start, 1, place))
                if data.draw(st.booleans()):
                    refused.setdefault(target, []).append((place - 1, place))
                    missing[start].add(target)
    letters = DeadLetters(runs, "expired", frozenset([early]))
    taken, again = RoutedLetters(one, letters, takers).parted(refused)
    found: dict[tuple[bytes, int], set[Queue]] = {
        (body, run.first if run.first == NOT_STORED else run.first + at): set()
        for run in taken
        for at, body in enumerate(run.bodies)
    }
    for each in again:
        assert early in each.done
        for run in each.runs:
            for at, body in enumerate(run.bodies):
                key = body, run.first if run.first == NOT_STORED else run.first + at
                assert key not in found
                found[key] = takers.keys() - each.done
    assert found == {
        (body, offset): targets for body, offset, targets in zip(bodies, offsets, missing, strict=True)
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
