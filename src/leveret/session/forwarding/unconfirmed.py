"""The publishes of this node's clients to one queue of another leader, until that leader confirms them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from leveret.core.queues.messages import Messages, Run

Notify = Callable[[bool], None]


class _Waiter(NamedTuple):
    """The callback for when the outcome of all numbers after `since`, up to `number`, is known."""

    since: int
    number: int
    notify: Notify


class Unconfirmed:
    """The messages have numbers from 1 on, without gaps, under any leader; see wire.forwarding.

    Attributes:
        last: the number of the last published message.
        known: the number up to which the outcome is known.
        sent: the number up to which a leader may have them.
        size_bytes: the octets of the kept bodies.
    """

    def __init__(self) -> None:
        """Begin without messages."""
        self.last = 0
        self.known = 0
        self.sent = 0
        self.size_bytes = 0
        self._runs: deque[Run] = deque()
        self._refused: deque[tuple[int, int]] = deque()
        self._waiting: deque[_Waiter] = deque()

    def __len__(self) -> int:
        """The number of waiting messages."""
        return self.last - self.known

    def add(self, messages: Messages) -> None:
        """Add published messages."""
        self._runs.append(Run(self.last + 1, messages))
        self.last += len(messages)
        self.size_bytes += messages.body_bytes

    def runs(self) -> Iterator[Messages]:
        """All waiting messages, in order; the first has the number `known` + 1."""
        for run in self._runs:
            yield run.taken()

    def when_known(self, notify: Notify, number: int, *, alone: bool) -> None:
        """Call back when the outcome of everything up to `number` is known, with whether all is safe.

        With `alone`, the outcome is that of this message only.
        """
        number = min(number, self.last)
        if number <= self.known:
            notify(not self._was_refused(number - 1, number))
            return
        waiter = _Waiter(number - 1 if alone else self.known, number, notify)
        # Of several waiters of one flush, those for all of it may come before those for a part.
        place = len(self._waiting)
        while place and self._waiting[place - 1].number > number:
            place -= 1
        self._waiting.insert(place, waiter)

    def settle(self, number: int, *, ok: bool) -> list[Callable[[], None]]:
        """Note that the leader has, or has refused, all messages up to `number` whose outcome was unknown.

        Returns:
            The callbacks to call, in order.
        """
        if number <= self.known:
            return []
        number = min(number, self.last)
        if not ok:
            self._refused.append((self.known, number))
        self._drop(number - self.known)
        self.known = number
        notify: list[Callable[[], None]] = []
        while self._waiting and self._waiting[0].number <= number:
            waiter = self._waiting.popleft()
            notify.append(_call(waiter.notify, not self._was_refused(waiter.since, waiter.number)))
        if self._refused:
            since = min((waiter.since for waiter in self._waiting), default=number)
            while self._refused and self._refused[0][1] <= since:
                self._refused.popleft()
        return notify

    def _was_refused(self, since: int, number: int) -> bool:
        return any(first < number and since < last for first, last in self._refused)

    def _drop(self, count: int) -> None:
        runs = self._runs
        while count:
            run = runs.popleft()
            dropped = run.cut(run.first, min(run.end, run.first + count))
            if dropped is not run:
                runs.appendleft(run.behind(dropped))
            count -= len(dropped)
            self.size_bytes -= dropped.body_bytes


def _call(notify: Notify, ok: bool) -> Callable[[], None]:
    return lambda: notify(ok)
