"""What this node's clients published to one queue that another node leads, until that one has confirmed it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from leveret.core.queues.messages import Messages, Run

Notify = Callable[[bool], None]


class _Waiter(NamedTuple):
    """Who is to be told when the outcome of all numbers after `since`, up to `number`, is known."""

    since: int
    number: int
    notify: Notify


class Unconfirmed:
    """The messages have numbers from 1 on, without gaps, whoever leads the queue; see wire.forwarding.

    Attributes:
        last: the number of the last that was published.
        known: the number up to which it is known what became of them.
        sent: the number up to which a leader may have got them.
        size_bytes: octets of the bodies that are kept.
    """

    def __init__(self) -> None:
        """Nothing was published."""
        self.last = 0
        self.known = 0
        self.sent = 0
        self.size_bytes = 0
        self._runs: deque[Run] = deque()
        self._refused: deque[tuple[int, int]] = deque()
        self._waiting: deque[_Waiter] = deque()

    def __len__(self) -> int:
        """How many messages wait."""
        return self.last - self.known

    def add(self, messages: Messages) -> None:
        """These were published."""
        self._runs.append(Run(self.last + 1, messages))
        self.last += len(messages)
        self.size_bytes += messages.body_bytes

    def runs(self) -> Iterator[Messages]:
        """All that wait, in order, the first has the number `known` + 1."""
        for run in self._runs:
            yield run.taken()

    def when_known(self, notify: Notify, number: int, *, alone: bool) -> None:
        """Tell when it is known what became of everything up to `number`: whether all is safe.

        With `alone` whether that one is.
        """
        number = min(number, self.last)
        if number <= self.known:
            notify(not self._was_refused(number - 1, number))
            return
        waiter = _Waiter(number - 1 if alone else self.known, number, notify)
        # Of several in one flush those that wait for all of it may come before those that wait for a part.
        place = len(self._waiting)
        while place and self._waiting[place - 1].number > number:
            place -= 1
        self._waiting.insert(place, waiter)

    def settle(self, number: int, *, ok: bool) -> list[Callable[[], None]]:
        """The leader has, or has refused, all up to `number` of which nothing was known.

        Returns:
            What is to be called, in order.
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
