"""One broker's side of a conversation: plays steps, and tells what its clients saw."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import httpx
from pamqp import body, commands, header

from tests.conformance.brokers import Broker
from tests.conformance.conversations.chance import QUEUES, USERS
from tests.conformance.conversations.http_answers import answer_of
from tests.conformance.conversations.line import Line, answers_of
from tests.conformance.conversations.steps import (
    REPLY,
    VHOST,
    Call,
    Drain,
    Leave,
    Publish,
    Request,
    Settle,
    Step,
    Wait,
)
from tests.conformance.conversations.witness import Events, Witness

OBSERVER: Final = 9
UNKNOWN_TAG: Final = 1000
UNCOUNTED: Final = ("quorum", "stream")
"""3.10 counts no consumers of a stream and its messages later, and a get from a quorum queue as a consumer."""
LOCKED: Final = 405
MISSING: Final = 404
ABRUPT_S: Final = 0.02
"""In which a broker notices the end of a socket."""


class Side:
    """A virtual host of one broker, the clients in it, and one more client that asks for the states of queues."""

    def __init__(self, broker: Broker, http: httpx.Client, vhost: str) -> None:
        """The virtual host must be there."""
        self.broker = broker
        self.witness = Witness()
        self._http = http
        self._vhost = vhost
        self._lines: dict[int, Line] = {}
        self._waits: Line | None = None
        self._missing: set[str] = set()
        self._asked: list[str] = []
        self._observer = Line(broker.amqp_port, vhost, OBSERVER, USERS[0], self.witness)

    def close(self) -> None:
        """End all connections."""
        for line in (*self._lines.values(), self._observer):
            line.leave(abrupt=True)
        self._lines.clear()

    # A step

    def begin(self, number: int, step: Step) -> None:
        """Send what a step sends."""
        self._waits = None
        if isinstance(step, Call) and step.method == "Queue.Declare":
            self._missing.clear()
        if isinstance(step, Request):
            self._request(step)
        elif isinstance(step, Leave):
            self._leave(step)
        elif isinstance(step, Drain):
            self._drain(step.queue)
        elif isinstance(step, Wait):
            pass
        else:
            line = self._line(step.connection)
            if line is not None:
                line.step = number
                if self._send(line, step):
                    self._waits = line

    def finish(self) -> None:
        """Read until the step is answered."""
        if self._waits is not None:
            self._waits.finish()

    def _line(self, number: int) -> Line | None:
        line = self._lines.get(number)
        if line is None or not line.is_open:
            line = Line.opened(self.broker.amqp_port, self._vhost, number, USERS[number], self.witness)
            self._lines.pop(number, None)
            if line is not None:
                self._lines[number] = line
        return line

    def _send(self, line: Line, step: Call | Publish | Settle) -> bool:
        """Send a step; return whether it was possible."""
        view = line.channel(step.channel)
        if view is None or not line.is_open:
            return False
        if isinstance(step, Publish):
            if view.published is not None:
                view.published += 1
                view.unconfirmed.add(view.published)
            line.send(step.channel, *self._message(step))
        elif isinstance(step, Settle):
            if step.nth >= 0 and not view.unsettled:
                return False
            tag, multiple = self._tag(line, step)
            arguments = {"delivery_tag": tag}
            arguments |= {} if step.how == "Reject" else {"multiple": multiple}
            arguments |= {} if step.how == "Ack" else {"requeue": step.requeue}
            view.settle(tag, multiple=multiple)
            line.send(step.channel, getattr(commands.Basic, step.how)(**arguments))
        else:
            self._call(line, step)
        return True

    def _call(self, line: Line, step: Call) -> None:
        klass, _, name = step.method.partition(".")
        arguments = dict(step.arguments)
        if step.method == "Queue.Delete" and arguments["queue"] in self.witness.uncounted:
            # RabbitMQ knows no conditions for these types, or ignores them: docs/deviations.md.
            arguments |= {"if_unused": False, "if_empty": False}
        method = getattr(getattr(commands, klass), name)(**arguments)
        view = line.channels[step.channel]
        if step.method == "Queue.Declare" and step.arguments["queue"]:
            kind = step.arguments.get("arguments", {}).get("x-queue-type")
            if kind in UNCOUNTED:
                self.witness.uncounted.add(step.arguments["queue"])
            if kind == "stream":
                self.witness.streams.add(step.arguments["queue"])
        if step.method.startswith("Basic.Recover"):
            view.unsettled.clear()
        elif step.method == "Channel.Close":
            del line.channels[step.channel]
        line.send(step.channel, method, awaits=answers_of(method))

    def _message(self, step: Publish) -> Iterator[Any]:
        key = self.witness.names.reply_name if step.routing_key == REPLY else step.routing_key
        yield commands.Basic.Publish(
            exchange=step.exchange, routing_key=key, mandatory=step.mandatory, immediate=step.immediate
        )
        octets = step.body.encode()
        yield header.ContentHeader(
            body_size=len(octets), properties=commands.Basic.Properties(**step.properties)
        )
        if octets:
            yield body.ContentBody(octets)

    def _tag(self, line: Line, step: Settle) -> tuple[int, bool]:
        """The tag, and whether it stands for several: not where brokers may mix consumers differently."""
        view = line.channels[step.channel]
        if step.nth < 0:
            return (0 if step.nth == -1 else UNKNOWN_TAG), step.multiple
        tags = [one.tag for one in view.in_order()]
        return tags[min(step.nth, len(tags) - 1)], step.multiple and tags == sorted(tags)

    def _leave(self, step: Leave) -> None:
        line = self._lines.pop(step.connection, None)
        if line is not None and line.is_open:
            line.leave(abrupt=step.abrupt)
            if step.abrupt:
                time.sleep(ABRUPT_S)

    def _request(self, step: Request) -> None:
        path = step.path.replace(VHOST, quote(self._vhost, safe=""))
        reply = self._http.request(step.method, path, json=step.body, auth=(step.user, step.user))
        self.witness.note(OBSERVER, 0, "requests", *answer_of(step, reply, self.witness.names))

    def _drain(self, queue: str) -> None:
        """Get without acknowledgements until the queue is empty, or refuses."""
        line = self._line(0)
        if line is None:
            return
        view = line.channel(1)
        before = -1
        while view is not None and view.last_tag > before:
            before = view.last_tag
            line.call(1, commands.Basic.Get(queue=queue, no_ack=True))

    # What is seen

    def ask(self) -> None:
        """Ask for the states of all queues, but of those that were missing and cannot be there since."""
        self._asked = [queue for queue in QUEUES if queue not in self._missing]
        self._observer.probe(self._asked)

    def seen(self) -> tuple[Events, list[Any]]:
        """What came since both sides agreed, and the states of the queues: of an exclusive one as its owner sees it."""
        found = dict(zip(self._asked, self._observer.probed(self._asked), strict=True))
        self._missing.update(queue for queue, state in found.items() if state == MISSING)
        states = [found.get(queue, MISSING) for queue in QUEUES]
        for line in self._lines.values():
            line.take()
            locked = [queue for queue, state in zip(QUEUES, states, strict=True) if state == LOCKED]
            if locked and line.is_open:
                line.probe(locked)
                own = dict(zip(locked, line.probed(locked), strict=True))
                states = [own.get(queue, state) for queue, state in zip(QUEUES, states, strict=True)]
        return self.witness.events(), states
