"""The waits of single clients: a confirm among 500 connections, and one message at a time by a stock client.

python -m bench.round_trips '{"role": "confirm", "port": 5672, ...}'

pace      500 connections publish ten messages a second each, with confirms; measured from a message's due time to its
          confirm
respond   pika answers requests
ask       pika sends requests with direct reply-to; measured from a request to its answer
confirm   pika publishes with a confirm for each message; measured from the call to its return
"""

from __future__ import annotations

import dataclasses
import heapq
import select
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pika
from pika.adapters.blocking_connection import BlockingChannel

from bench.client import LOOPBACK, Connection, LoadError, Message
from bench.contenders import Node
from bench.load import Confirms, ConsumeJob, percentiles_us
from bench.process import ORDERS, Result, Sampler, main, wait_for_go
from bench.rows import Reading, Row, Scenario, Settings, Target
from bench.workers import QUEUE, Worker

CONNECTIONS: Final = 500
CONNECTIONS_QUICK: Final = 50
RATE_EACH: Final = 10
BODY_BYTES: Final = 500
P99_MS_MAX: Final = 10.0
REPLY_TO: Final = "amq.rabbitmq.reply-to"
MODULE: Final = "bench.round_trips"
_POLL_S: Final = 0.05


@dataclass
class RoundTripJob:
    """The job of one process; only `pace` uses `connections`."""

    role: str
    port: int
    seconds: float = 0.0
    warmup_s: float = 0.0
    connections: int = 1
    queue: str = QUEUE


class _Paced:
    """One of many connections that publish at a low rate."""

    def __init__(self, job: RoundTripJob, message: bytes) -> None:
        self.connection = Connection(job.port)
        self.connection.confirm_select()
        self.confirms = Confirms()
        self.due: deque[float] = deque()
        self._message = message
        self._confirmed = 0

    def publish(self, due: float) -> None:
        """Send one message."""
        self.due.append(due)
        self.connection.socket.sendall(self._message)

    def read(self) -> list[float]:
        """Read confirms; return the due times of the confirmed messages."""
        self.confirms.feed(self.connection.receive())
        new, self._confirmed = self.confirms.count - self._confirmed, self.confirms.count
        return [self.due.popleft() for _ in range(new)]


def _pace(job: RoundTripJob) -> Result:
    message = Message("", job.queue, BODY_BYTES, True).encode(bytes(BODY_BYTES))
    paced = [_Paced(job, message) for _ in range(job.connections)]
    wait_for_go()
    sampler, started = Sampler(), time.monotonic()
    interval, counted_from, ends = 1 / RATE_EACH, started + job.warmup_s, started + job.warmup_s + job.seconds
    turns = [(started + interval * place / len(paced), place) for place in range(len(paced))]
    sent = confirmed = 0
    ages_ns: list[int] = []
    with selectors.DefaultSelector() as selector:
        for one in paced:
            selector.register(one.connection.socket, selectors.EVENT_READ, one)
        while True:
            while turns and turns[0][0] <= time.monotonic():
                due, place = turns[0]
                if due >= ends:
                    turns.clear()
                    break
                heapq.heapreplace(turns, (due + interval, place))
                paced[place].publish(due)
                sent += 1
            if not turns and confirmed == sent:
                break
            for key, _ in selector.select(max(0.0, turns[0][0] - time.monotonic()) if turns else None):
                moments = key.data.read()
                confirmed += len(moments)
                now = time.monotonic()
                ages_ns += [int((now - due) * 1e9) for due in moments if due >= counted_from]
    for one in paced:
        one.connection.close()
    return _aged(sampler, sent, ages_ns)


@contextmanager
def pika_channel(port: int) -> Iterator[BlockingChannel]:
    """A channel of a connection of its own, by pika."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, port))
    try:
        yield connection.channel()
    finally:
        connection.close()


def _respond(job: RoundTripJob) -> Result:
    """Answer requests until the parent's order to end."""
    answered = 0

    def answer(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        nonlocal answered
        channel.basic_publish("", properties.reply_to, body)
        answered += 1

    with pika_channel(job.port) as channel:
        channel.basic_consume(job.queue, answer, auto_ack=True)
        wait_for_go()
        sampler = Sampler()
        while not select.select([ORDERS], [], [], 0)[0]:
            channel.connection.process_data_events(_POLL_S)
    return sampler.result(answered)


def _ask(job: RoundTripJob) -> Result:
    answers: deque[bytes] = deque()

    with pika_channel(job.port) as channel:
        channel.basic_consume(REPLY_TO, lambda *answer: answers.append(answer[3]), auto_ack=True)
        asking = pika.BasicProperties(reply_to=REPLY_TO)

        def ask(number: int) -> None:
            content = b"%0*d" % (BODY_BYTES, number)
            channel.basic_publish("", job.queue, content, asking)
            while not answers:
                channel.connection.process_data_events(None)
            if answers.popleft() != content or answers:
                raise LoadError("an answer is not that of the last request")

        return _timed(job, ask)


def _confirm(job: RoundTripJob) -> Result:
    with pika_channel(job.port) as channel:
        channel.confirm_delivery()
        lasting = pika.BasicProperties(delivery_mode=2)
        return _timed(
            job, lambda number: channel.basic_publish("", job.queue, b"%0*d" % (BODY_BYTES, number), lasting)
        )


def _timed(job: RoundTripJob, step: Callable[[int], None]) -> Result:
    """Repeat the step, and measure each one after the warm-up."""
    wait_for_go()
    sampler, count = Sampler(), 0
    counted_from = time.monotonic_ns() + int(job.warmup_s * 1e9)
    ends = counted_from + int(job.seconds * 1e9)
    ages_ns: list[int] = []
    while (began := time.monotonic_ns()) < ends:
        step(count)
        count += 1
        if began >= counted_from:
            ages_ns.append(time.monotonic_ns() - began)
    return _aged(sampler, count, ages_ns)


def _aged(sampler: Sampler, count: int, ages_ns: list[int]) -> Result:
    if not ages_ns:
        raise LoadError("not one answer in the measured span")
    return dataclasses.replace(sampler.result(count), ages_us=percentiles_us(ages_ns))


def work(fields: dict[str, Any]) -> Result:
    """Do one of the jobs."""
    job = RoundTripJob(**fields)
    return {"pace": _pace, "respond": _respond, "ask": _ask, "confirm": _confirm}[job.role](job)


# -- the rows ---------------------------------------------------------------------------------------------


@contextmanager
def _queue(node: Node) -> Iterator[Connection]:
    connection = Connection(node.amqp_port)
    connection.declare_queue(QUEUE)
    try:
        yield connection
    finally:
        connection.delete_queue(QUEUE)
        connection.close()


def _job(role: str, node: Node, settings: Settings, connections: int = 1) -> RoundTripJob:
    return RoundTripJob(role, node.amqp_port, settings.seconds, settings.warmup_s, connections)


class _Spent:
    """The processor time of a node from now on."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._before_s = node.cpu_seconds()

    def readings(self, names: dict[str, str], result: Result) -> dict[str, Reading]:
        """Return a reading for each row; `names` has the percentile of each row."""
        cpu_us = (self._node.cpu_seconds() - self._before_s) / result.count * 1e6
        return {
            row: Reading(result.ages_us[each] / 1000, cpu_us, result.ages_us) for row, each in names.items()
        }


def _connections(node: Node, settings: Settings) -> dict[str, Reading]:
    count = CONNECTIONS_QUICK if settings.quick else CONNECTIONS
    consume = ConsumeJob(node.amqp_port, QUEUE)
    with (
        _queue(node),
        Worker(consume) as consumer,
        Worker(_job("pace", node, settings, count), MODULE) as publisher,
    ):
        consumer.ready().go()
        publisher.ready()
        spent = _Spent(node)
        publisher.go()
        published = publisher.result()
        readings = spent.readings({"conns-500-p50": "p50", "conns-500-p99": "p99"}, published)
        consumer.report(published.count)
        if (delivered := consumer.result().count) != published.count:
            raise LoadError(f"{published.count} messages published, {delivered} delivered")
    return readings


def _reply_to(node: Node, settings: Settings) -> dict[str, Reading]:
    with (
        _queue(node),
        Worker(_job("respond", node, settings), MODULE) as responder,
        Worker(_job("ask", node, settings), MODULE) as asker,
    ):
        responder.ready().go()
        asker.ready()
        spent = _Spent(node)
        asker.go()
        asked = asker.result()
        readings = spent.readings({"reply-to": "p50", "reply-to-p99": "p99"}, asked)
        responder.end()
        if (answered := responder.result().count) != asked.count:
            raise LoadError(f"{asked.count} requests, {answered} answers")
    return readings


def _confirm_each(node: Node, settings: Settings) -> dict[str, Reading]:
    with _queue(node) as connection, Worker(_job("confirm", node, settings), MODULE) as publisher:
        publisher.ready()
        spent = _Spent(node)
        publisher.go()
        published = publisher.result()
        readings = spent.readings({"confirm-each-p50": "p50", "confirm-each-p99": "p99"}, published)
        if (found := connection.ready_messages(QUEUE)) != published.count:
            raise LoadError(f"{published.count} messages confirmed, {found} in the queue")
    return readings


_MANY: Final = f"{CONNECTIONS} connections, {RATE_EACH}/s each, consumed: from due to confirmed"
ROUND_TRIPS: Final = (
    Scenario(
        (
            Row("conns-500-p50", f"{_MANY}, p50", "ms", False),
            Row("conns-500-p99", f"{_MANY}, p99", "ms", False, Target("value", P99_MS_MAX)),
        ),
        _connections,
    ),
    Scenario(
        (
            Row("reply-to", "direct reply-to by pika, round trip, p50", "ms", False),
            Row("reply-to-p99", "direct reply-to by pika, round trip, p99", "ms", False),
        ),
        _reply_to,
    ),
    Scenario(
        (
            Row("confirm-each-p50", "pika, a confirm for each publish, p50", "ms", False),
            Row("confirm-each-p99", "pika, a confirm for each publish, p99", "ms", False),
        ),
        _confirm_each,
    ),
)


if __name__ == "__main__":
    main(work)
