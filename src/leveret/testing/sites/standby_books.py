"""The books of a pair of sites: each published message by its number, and where it has to be.

A message that was confirmed, and whose ack no later answer showed, is *expected* in its queue: once, in order, and as
it was published. A message whose publish ended without an answer is *unsure*: it may be there. So is a transient
message until a look at its queue, because a node that dies may take it along, as with RabbitMQ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final

from leveret.testing.applications.applications import ReceivedMessage
from leveret.testing.applications.contents import PERSISTENT, is_same, is_shown, shown_number
from leveret.testing.applications.mixed_messages import MixedMessage, mixed_message

Place = tuple[str, str]
"""A vhost and a queue."""
_TRANSIENT: Final = 0.2


class StandbyBooks:
    """See the module.

    Attributes:
        expected: by vhost and queue, the numbers of unsettled messages, in order.
        unsure: the numbers of messages whose publish ended without an answer.
        published: all messages, by number.
    """

    def __init__(self, seed: int) -> None:
        """Begin without messages; their contents follow from the seed."""
        self.expected: dict[Place, list[int]] = {}
        self.unsure: set[int] = set()
        self.published: dict[int, MixedMessage] = {}
        self._seed = seed
        self._numbers = count(1)

    def next(self, queue: str, *, transient: float = _TRANSIENT, exchange: str = "") -> MixedMessage:
        """Return the next message to publish to a queue; it is unsure until `confirm`."""
        message = mixed_message(
            next(self._numbers), queue, seed=self._seed, transient=transient, exchange=exchange
        )
        self.published[message.number] = message
        self.unsure.add(message.number)
        return message

    def confirm(self, place: Place, message: MixedMessage) -> None:
        """Note the answer to a publish."""
        self.unsure.discard(message.number)
        self.expected.setdefault(place, []).append(message.number)

    def look(self, place: Place, found: Sequence[ReceivedMessage], settled: Iterable[int]) -> None:
        """Note all messages of a queue, as a consumer at the upstream found them, and which of them it settled.

        Raises:
            AssertionError: a message is altered, doubled or missing.
        """
        self._check_contents(place, found)
        there, gone = {taken.number for taken in found}, {*settled}
        left = [number for number in self.expected[place] if number in there or not self.is_transient(number)]
        lost = [number for number in left if number not in there]
        assert not lost, f"{_named(place)}: the upstream itself has lost {len(lost)}, first {lost[:5]}"
        self.expected[place] = [number for number in left if number not in gone]

    def settle(self, place: Place, numbers: Iterable[int]) -> None:
        """Note that messages are settled."""
        gone = {*numbers}
        self.expected[place] = [number for number in self.expected[place] if number not in gone]

    def is_transient(self, number: int) -> bool:
        """Return whether a message is not persistent."""
        return bool(self.published[number].properties.delivery_mode != PERSISTENT)

    def check(
        self,
        place: Place,
        found: Sequence[ReceivedMessage],
        wanted: Sequence[int] | None = None,
        *,
        has_own_exchange: bool = True,
    ) -> None:
        """Check that a queue has its expected messages, or these: once, in order, and as they were published.

        A recovery into another broker publishes them through an exchange of its own (`has_own_exchange` false).

        Raises:
            AssertionError: it has others.
        """
        self._check_contents(place, found, has_own_exchange=has_own_exchange)
        numbers = self.expected[place] if wanted is None else wanted
        sure = [taken.number for taken in found if taken.number not in self.unsure]
        due = {*numbers}
        lost, more = due - {*sure}, [number for number in sure if number not in due]
        books = f"{_named(place)}: {len(lost)} lost, {len(more)} too many"
        assert (len(lost), len(more)) == (0, 0), f"{books}: {sorted(lost)[:5]} {more[:5]}"
        assert sure == [*numbers], f"{_named(place)} is not in order"

    def _check_contents(
        self, place: Place, found: Sequence[ReceivedMessage], *, has_own_exchange: bool = True
    ) -> None:
        doubled = [number for number, times in Counter(taken.number for taken in found).items() if times > 1]
        assert not doubled, f"{_named(place)}: {doubled[:5]} are doubled"
        altered = [text for taken in found if (text := self._difference(place[1], taken, has_own_exchange))]
        assert not altered, f"{_named(place)}: {len(altered)} messages are altered, the first: {altered[0]}"

    def _difference(self, queue: str, taken: ReceivedMessage, has_own_exchange: bool) -> str:
        """Return what is wrong with a message of a queue; empty if it is as it was published."""
        wanted = self.published.get(taken.number)
        if wanted is None or wanted.queue != queue:
            return f"message {taken.number} is of no publisher of this queue: {taken}"[:1000]
        exchange = taken.exchange if has_own_exchange else wanted.exchange
        if (exchange, taken.routing_key) != (wanted.exchange, wanted.routing_key):
            came = f"{taken.exchange}/{taken.routing_key}"
            return (
                f"message {taken.number} came by {came}, published to {wanted.exchange}/{wanted.routing_key}"
            )
        return self.changed(taken)

    def changed(self, taken: ReceivedMessage) -> str:
        """Return how the content of a message differs from the published one, wherever it is; empty if in nothing."""
        wanted = self.published[taken.number]
        if not is_same(vars(wanted.properties), vars(taken.properties)):
            return f"message {taken.number} has {taken.properties}, published with {wanted.properties}"
        if taken.body != wanted.body:
            return f"message {taken.number} has {taken.body[:60]!r}, published with {wanted.body[:60]!r}"
        return ""

    def check_rows(self, rows: Iterable[Mapping[str, Any]]) -> list[int]:
        """Return the numbers of messages that an operator's command shows in JSON.

        Raises:
            AssertionError: a row differs from the message as it was published.
        """
        numbers = []
        for row in rows:
            numbers.append(shown_number(row))
            wanted = self.published[numbers[-1]]
            assert is_shown(vars(wanted.properties), wanted.body, row), (
                f"published as {wanted}, shown as {row}"
            )
        return numbers


def _named(place: Place) -> str:
    return f"{place[1]} of {place[0]}"
