"""The books of queues that come and go: RunBooks in which a message is owed only while nothing may have removed it.

A message is owed once it is confirmed, if it has certainly reached its queue, and if no removal may have met it. A
removal is a deletion or a purge of its queue. It lasts from the request until the answer; without an answer it lasts
until the end of the run, because a node may carry it out at any time. So it excuses each message that was published
before its end. A message that was confirmed before an answered deletion began is *gone*: nobody may get it who asks
after the answer. (A purge leaves what consumers have not acknowledged, and that may come back.)

A message has certainly reached its queue if the queue, and the binding that leads there, were declared before the
message was published; or if it was mandatory, and did not come back before its confirm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leveret.testing.applications.run_books import BookedMessage, BooksFault, RunBooks

_Copy = tuple[str, int]


@dataclass(slots=True, eq=False)
class Removal:
    """A deletion or a purge of a queue.

    Attributes:
        queue: the queue.
        began: the moment of the request.
        dooms: for a deletion, the messages that the queue certainly had then; nobody may get them after the answer.
    """

    queue: str
    began: int
    dooms: Sequence[BookedMessage] = ()


@dataclass(slots=True, eq=False)
class _Known:
    """What is known of the queue, or the binding, of some name.

    Attributes:
        ending: the requests without an answer that may end it.
        ended: the moment of the last answer to such a request.
        asked: the number of declarations without an answer.
        answered: the moment of the last answer to one.
        gone: whether it was ended, and no declaration may have come since.
        is_sure: whether it is there at all nodes, until the next request that may end it.
    """

    ending: set[Removal] = field(default_factory=set)
    ended: int = 0
    asked: int = 0
    answered: int = 0
    gone: bool = False
    is_sure: bool = False

    def begins(self, asked: int, now: int) -> None:
        """Note the answer to a declaration: if no end may have come after the request, it is there."""
        self.is_sure = not self.ending and self.ended < asked
        self.answered = now
        self.gone = False

    def may_end(self, removal: Removal) -> None:
        """Note a request that may end it."""
        self.ending.add(removal)
        self.is_sure = False

    def ends(self, removal: Removal, now: int) -> None:
        """Note the answer to such a request."""
        if removal in self.ending:
            self.ending.discard(removal)
            self.ended = now
            self.gone = not self.ending and not self.asked and self.answered < removal.began


class ChurnBooks(RunBooks):
    """See the module.

    Moments are numbers of the same row as those of messages, so they have an order. All queues of a run that are not
    `fleeting` are durable, and have no expiry and no limit.
    """

    def __init__(self) -> None:
        """Begin without queues."""
        super().__init__()
        self._queues: dict[str, _Known] = defaultdict(_Known)
        self._bindings: dict[tuple[str, str], _Known] = defaultdict(_Known)
        self._removals: dict[str, set[Removal]] = defaultdict(set)
        self._of_queue: dict[str, list[BookedMessage]] = defaultdict(list)
        self._excused: set[_Copy] = set()
        self._in_doubt: set[_Copy] = set()
        self._returned: set[int] = set()
        self._gone: dict[_Copy, int] = {}
        self._routed: dict[int, str] = {}
        """The publishers of messages to exchanges, by the messages' numbers."""
        self.fleeting: set[str] = set()

    def moment(self) -> int:
        """Return the present moment: every later one, and every later message, has a higher number."""
        self._number += 1
        return self._number

    # -- queues and bindings ----------------------------------------------------------------------

    def declaring(self, queue: str) -> int:
        """Note that the declaration of a queue is about to be asked for; return the moment."""
        self._queues[queue].asked += 1
        self._queues[queue].gone = False
        return self.moment()

    def declared(self, queue: str, asked: int) -> None:
        """Note the answer to the declaration of a queue that was asked for at this moment."""
        self._queues[queue].asked -= 1
        self._queues[queue].begins(asked, self.moment())

    def bound(self, exchange: str, queue: str, asked: int) -> None:
        """Note the answer to a binding that was asked for at this moment."""
        if self._queues[queue].is_sure:
            self._bindings[exchange, queue].begins(asked, self.moment())

    def removing(self, queue: str, *, is_deletion: bool) -> Removal:
        """Note that a deletion or a purge is about to be asked for."""
        present = self._of_queue[queue]
        dooms = [message for message in present if message.is_confirmed] if is_deletion else []
        removal = Removal(queue, self.moment(), dooms)
        self._removals[queue].add(removal)
        self._excused.update((queue, message.number) for message in present)
        if is_deletion:
            for known in self._known_of(queue):
                known.may_end(removal)
        return removal

    def removed(self, removal: Removal) -> None:
        """Note the answer to a deletion or a purge."""
        now, queue = self.moment(), removal.queue
        self._removals[queue].discard(removal)
        for message in removal.dooms:
            self._gone.setdefault((queue, message.number), now)
        for known in self._known_of(queue):
            known.ends(removal, now)

    def replaced(self, removal: Removal) -> None:
        """Note the answer to a declaration, see `declaring`, behind a deletion on one channel: it answers both."""
        known = self._queues[removal.queue]
        others_ended = known.ended
        self.removed(removal)
        # The declaration came behind this deletion; whether it came behind another one meanwhile, nobody knows.
        known.is_sure = not known.ending and others_ended < removal.began
        known.asked -= 1
        known.answered = self.moment()
        known.gone = False

    def unbinding(self, exchange: str, queue: str) -> Removal:
        """Note that the end of a binding is about to be asked for: of the copies under way, none is sure any more."""
        removal = Removal(queue, self.moment())
        self._bindings[exchange, queue].may_end(removal)
        self._in_doubt.update(
            (queue, message.number) for message in self._of_queue[queue] if not message.is_confirmed
        )
        return removal

    def unbound(self, exchange: str, removal: Removal) -> None:
        """Note the answer to the end of a binding."""
        self._bindings[exchange, removal.queue].ends(removal, self.moment())

    def _known_of(self, queue: str) -> list[_Known]:
        """Return what is known of a queue, and of its bindings, which end with it."""
        return [
            self._queues[queue],
            *(known for (_, bound), known in self._bindings.items() if bound == queue),
        ]

    def is_sure(self, queue: str) -> bool:
        """Return whether a queue is there, as all nodes know."""
        return self._queues[queue].is_sure

    def judge_queues(self, there: Collection[str]) -> None:
        """Compare with the queues of a cluster at rest. Raises BooksFault: one is missing, or is back."""
        for queue, known in self._queues.items():
            if known.is_sure and queue not in there and queue not in self.fleeting:
                raise BooksFault(f"vanished: queue {queue} was declared, and is not there")
            if known.gone and queue in there:
                raise BooksFault(f"back: queue {queue} was deleted, and is there")

    # -- messages ---------------------------------------------------------------------------------

    def published(
        self, queues: Iterable[str], publisher: str, *, is_withheld: bool = False
    ) -> list[BookedMessage]:
        """See RunBooks."""
        copies = super().published(queues, publisher, is_withheld=is_withheld)
        for message in copies:
            self._note(message, is_sure=self._queues[message.queue].is_sure)
        return copies

    def routed(self, exchange: str, publisher: str) -> tuple[int, list[BookedMessage]]:
        """Note a message that is about to be published to an exchange; return its number, and its sure copies."""
        number = self.moment()
        self._routed[number] = publisher
        queues = [
            queue for (source, queue), known in self._bindings.items() if source == exchange and known.is_sure
        ]
        copies = [self._copy(queue, number) for queue in queues]
        for message in copies:
            self._note(message, is_sure=True)
        return number, copies

    def look_up(self, queue: str, number: str, body: bytes, properties: Mapping[str, Any]) -> BookedMessage:
        """See RunBooks. A message to an exchange may also be in a queue that was bound, or unbound, meanwhile."""
        if number.isdigit() and int(number) in self._routed and (queue, int(number)) not in self.messages:
            self._note(self._copy(queue, int(number)), is_sure=False)
        return super().look_up(queue, number, body, properties)

    def read(self, stream: str, number: str, body: bytes) -> BookedMessage:
        """Return the message that a stream has; its properties are for StreamBooks. Raises BooksFault."""
        return self.look_up(stream, number, body, BookedMessage(int(number), stream, "").properties)

    def _copy(self, queue: str, number: int) -> BookedMessage:
        message = self.messages[queue, number] = BookedMessage(number, queue, self._routed[number])
        return message

    def _note(self, message: BookedMessage, *, is_sure: bool) -> None:
        queue, copy = message.queue, (message.queue, message.number)
        self._of_queue[queue].append(message)
        if self._removals[queue] or queue in self.fleeting:
            self._excused.add(copy)
        if not is_sure:
            self._in_doubt.add(copy)

    def returned(self, queue: str, number: int) -> None:
        """Note that a mandatory message to one queue came back. Raises BooksFault: the queue was there."""
        if not self._is_excused(self.messages[queue, number]):
            raise BooksFault(f"returned: message {number} came back although queue {queue} was there")
        self._returned.add(number)

    def confirm_mandatory(self, message: BookedMessage) -> None:
        """Note the confirm of a mandatory message to one queue: it is there, unless the message came back before."""
        if message.number not in self._returned:
            self._in_doubt.discard((message.queue, message.number))
        self.confirm((message,))

    def _is_excused(self, message: BookedMessage) -> bool:
        copy = message.queue, message.number
        return copy in self._excused or copy in self._in_doubt or message.number in self._returned

    def owes(self, message: BookedMessage) -> bool:
        """See RunBooks."""
        return super().owes(message) and not self._is_excused(message)

    def got(self, message: BookedMessage, asked: int) -> None:
        """Judge a message that somebody got who asked at this moment. Raises BooksFault: it was gone by then."""
        gone = self._gone.get((message.queue, message.number))
        if gone is not None and gone < asked and not self.may_lose:
            raise BooksFault(
                f"resurrected: message {message.number} came out of {message.queue} after that had been emptied"
            )

    def _judge_delivery(self, message: BookedMessage, *, redelivered: bool) -> None:
        # A node may send a message again to the next queue of the name, if the former one went with the confirm.
        if not self._is_excused(message):
            super()._judge_delivery(message, redelivered=redelivered)

    def names(self) -> set[str]:
        """Return the names of all queues of the run."""
        return {*self._of_queue, *self._queues}
