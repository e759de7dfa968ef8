"""Publishes and commits that reach very many queues: in turns, to the same end as in one step.

Each story is played twice: on a node where "very many" begins at three queues, of which one takes messages with each
flush, and on one that does all at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base, commands

from leveret.core.broker import deferred_work
from leveret.session.amqp091 import channel, destinations, publishing
from leveret.session.amqp091.connection import ClientConnection
from tests.unit.session.amqp091.fakes import FakeNode, connect, frame, publish, take

QUEUES = [f"q{number}" for number in range(5)]
FANOUT, ALTERNATE = "amq.fanout", "second"
MODES: dict[str, list[base.Frame]] = {
    "plain": [],
    "confirm": [commands.Confirm.Select()],
    "transaction": [commands.Tx.Select()],
}
WIDE = {"fanout": FANOUT, "second": ALTERNATE}
STEPS = st.sampled_from(["fanout", "second", "q0", "q4", "missing", "commit", "rollback", "passive", "ack"])


class Result(NamedTuple):
    """What a story leaves, and what its client was told."""

    stored: dict[str, list[bytes]]
    settled: dict[str, set[int]]
    told: list[str]
    confirmed: list[int]


@contextmanager
def turns(*, few: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (destinations, channel):
            patch.setattr(module, "FEW_QUEUES", few)
        for turned in (publishing, channel):
            patch.setattr(turned, "QUEUES_A_TURN", 1 if few < len(QUEUES) else 1000)
        patch.setattr(deferred_work, "AT_ONCE", 1)
        yield


class Story:
    """A client that publishes, one that does so between its turns, and queues bound twice."""

    def __init__(self, mode: str) -> None:
        self.node = FakeNode()
        self.client, self.other = connect(self.node, 1), connect(self.node, 1)
        self._woken = False
        self.client.wake = self._wake
        self.number = 0
        setup: list[base.Frame] = [commands.Exchange.Declare(exchange=ALTERNATE, exchange_type="fanout")]
        for name in QUEUES:
            setup.append(commands.Queue.Declare(queue=name, durable=True))
            setup += [commands.Queue.Bind(queue=name, exchange=each) for each in WIDE.values()]
        self.send(self.other, *map(frame, setup))
        self.send(self.other, *publish(b"first", "q0"), *publish(b"second", "q0"))
        self.node.flush(self.other)
        self.send(self.client, frame(commands.Basic.Consume(queue="q0", consumer_tag="c")))
        self.node.flush(self.client)
        self.send(self.client, frame(commands.Basic.Cancel("c")), *map(frame, MODES[mode]))
        self.tags = [1, 2]
        self.flush()
        take(self.client)
        take(self.other)

    def _wake(self) -> None:
        self._woken = True

    def send(self, session: ClientConnection, *octets: bytes) -> None:
        session.receive(b"".join(octets), 0)

    def flush(self) -> None:
        self.node.flush(self.client, self.other)
        if self._woken:
            self._woken = False
            self.client.go_on(0)

    def octets(self, step: str, mode: str) -> list[bytes]:
        self.number += 1
        if step in ("commit", "rollback"):
            method = commands.Tx.Commit() if step == "commit" else commands.Tx.Rollback()
            return [frame(method)] if mode == "transaction" else []
        if step == "passive":
            return [frame(commands.Queue.Declare(queue="q4", passive=True))]
        if step == "ack":
            return [frame(commands.Basic.Ack(self.tags.pop(0)))] if self.tags else []
        exchange = WIDE.get(step, "")
        return publish(
            b"%d %s" % (self.number, step.encode()), step, exchange, headers={"n": self.number % 2}
        )

    def play(self, mode: str, reads: list[list[str]], between: list[str]) -> Result:
        for steps in reads:
            self.send(self.client, *[part for step in steps for part in self.octets(step, mode)])
            self.flush()
            for name in between[:1]:
                self.send(self.other, *publish(b"other", name))
            between = between[1:]
        for _ in range(40 * len(QUEUES)):
            self.flush()
            if not self.node.broker.deferred_work and self.client.blocked_reason is None:
                break
        self.flush()
        assert not self.node.broker.deferred_work
        assert self.client.blocked_reason is None
        return self._result()

    def _result(self) -> Result:
        stored = {
            name: [body for _, _, body in messages if body != b"other"]
            for name, messages in self.node.messages().items()
        }
        settled = {
            queue.key[1]: {offset for _, first, end in ranges for offset in range(first, end)}
            for queue, ranges in self.node.settled.items()
        }
        told, confirmed = [], [0]
        for _, each in take(self.client):
            if isinstance(each, commands.Basic.Ack):
                assert each.delivery_tag > confirmed[-1]
                confirmed.append(each.delivery_tag)
            else:
                told.append(each.name)
        return Result(stored, settled, told, confirmed[-1:])


def played(few: int, mode: str, reads: list[list[str]], between: list[str]) -> Result:
    with turns(few=few):
        return Story(mode).play(mode, reads, between)


@settings(max_examples=100, deadline=None)
@given(
    mode=st.sampled_from(sorted(MODES)),
    reads=st.lists(st.lists(STEPS, max_size=6), min_size=1, max_size=4),
    between=st.lists(st.sampled_from(QUEUES), max_size=4),
)
def test_in_turns_all_ends_as_it_does_in_one_step(
    mode: str, reads: list[list[str]], between: list[str]
) -> None:
    assert played(2, mode, reads, between) == played(1000, mode, reads, between)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.sampled_from(["fanout", "second", "q0", "q4"]), min_size=3, max_size=6))
def test_what_a_transaction_settles_is_logged_after_all_that_it_publishes(steps: list[str]) -> None:
    with turns(few=2):
        story = Story("transaction")
        published = [part for step in steps for part in story.octets(step, "transaction")]
        story.send(story.client, *published, frame(commands.Basic.Ack(1)), frame(commands.Tx.Commit()))
        expected = sum(len(QUEUES) if step in WIDE else 1 for step in steps) + 2
        while not any(story.node.settled.values()):
            story.flush()
        assert sum(map(len, story.node.messages().values())) == expected


def test_a_queue_that_is_deleted_before_its_turn_takes_nothing_and_all_others_do() -> None:
    with turns(few=2):
        story = Story("confirm")
        story.send(story.client, *publish(b"1", exchange=FANOUT))
        assert story.node.broker.deferred_work
        story.send(story.other, frame(commands.Queue.Delete(queue="q4")))
        while story.node.broker.deferred_work:
            story.flush()
        story.flush()
        assert {name: len(each) for name, each in story.node.messages().items()} == {
            "q0": 3, "q1": 1, "q2": 1, "q3": 1
        }  # fmt: skip
        assert [each.name for _, each in take(story.client)] == ["Basic.Ack"]


def test_who_publishes_to_very_many_queues_is_read_no_further_until_all_took_it() -> None:
    with turns(few=2):
        story = Story("plain")
        story.send(story.client, *publish(b"1", exchange=FANOUT), *publish(b"2", "q4"))
        assert [body for _, _, body in story.node.messages()["q4"]] == []
        while story.node.broker.deferred_work:
            assert story.client.blocked_reason is not None
            story.flush()
        story.flush()
        assert [body for _, _, body in story.node.messages()["q4"]] == [b"1", b"2"]


@pytest.mark.parametrize(
    "method",
    [
        commands.Basic.Get(queue="q4", no_ack=True),
        commands.Queue.Declare(queue="q4", passive=True),
        commands.Queue.Purge(queue="q4"),
        commands.Queue.Delete(queue="q4"),
    ],
    ids=lambda method: method.name,
)
def test_no_method_overtakes_a_publish_to_very_many_queues(method: base.Frame) -> None:
    answers = []
    for few in (2, 1000):
        with turns(few=few):
            story = Story("plain")
            story.send(story.client, *publish(b"1", exchange=FANOUT), frame(method))
            while story.node.broker.deferred_work or story.client.blocked_reason is not None:
                story.flush()
            answers.append(b"".join(story.client.take_output()))
    in_turns, at_once = answers
    assert in_turns == at_once != b""


def test_a_client_that_leaves_has_published_to_all_queues() -> None:
    with turns(few=2):
        story = Story("confirm")
        story.send(story.client, *publish(b"1", exchange=FANOUT))
        story.client.lost()
        while story.node.broker.deferred_work:
            story.flush()
        story.flush()
        assert all(messages for messages in story.node.messages().values())
