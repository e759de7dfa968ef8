"""The publishes of this node's clients to one queue of another leader, until that leader confirms them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from leveret.core.queues.messages import Messages, Run

Notify = Callable[[bool], None]


class _Waiter(NamedTuple):
    """Of messages after `since`, up to `number`: `notify` gets what was refused once all outcomes are known."""

    since: int
    number: int
    notify: Callable[[list[_Refused]], None]


class _Refused(NamedTuple):
    """The numbers after `since`, up to `number`, that a leader refused; see Unconfirmed.settle."""

    since: int
    number: int
    is_final: bool
    is_kept: bool = False


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
        self._doubted = 0
        self._runs: deque[Run] = deque()
        self._refused: deque[_Refused] = deque()
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
        since = number - 1 if alone or number <= self.known else self.known
        self._wait(_Waiter(since, number, lambda refused: notify(not refused)))

    def when_decided(
        self,
        then: Callable[[list[tuple[int, int]]], None],
        since: int,
        number: int,
        *,
        until_taken: bool = False,
    ) -> None:
        """Call back when the outcome of the messages after `since`, up to `number`, is known.

        `then` gets those that were refused and not for good, as ranges like these: no queue has them. With
        `until_taken` it gets all that the queue may lack, for want of room too.
        """

        def decided(refused: list[_Refused]) -> None:
            again = [each for each in refused if not (each.is_kept if until_taken else each.is_final)]
            then([(max(since, each.since), min(number, each.number)) for each in again])

        self._wait(_Waiter(since, number, decided))

    def _wait(self, waiter: _Waiter) -> None:
        number = waiter.number
        if number <= self.known:
            waiter.notify(self._refused_of(waiter))
            return
        # Of several waiters of one flush, those for all of it may come before those for a part.
        place = len(self._waiting)
        while place and self._waiting[place - 1].number > number:
            place -= 1
        self._waiting.insert(place, waiter)

    def doubt(self, number: int) -> None:
        """Note that a leader may have refused some messages up to `number`, for good: a later confirm covers them."""
        self._doubted = max(self._doubted, number)

    def settle(
        self, number: int, *, ok: bool, is_final: bool = False, is_kept: bool = False
    ) -> list[Callable[[], None]]:
        """Note that the leader has, or has refused, all messages up to `number` whose outcome was unknown.

        Args:
            number: the last of these messages.
            ok: whether the leader confirms them.
            is_final: whether a broker must not publish the refused messages again, because its queue has them, or
                because it dropped them for want of room.
            is_kept: whether its queue has them.

        Returns:
            The callbacks to call, in order.
        """
        if number <= self.known:
            return []
        number = min(number, self.last)
        if not ok:
            self._refused.append(_Refused(self.known, number, is_final, is_kept))
        elif self._doubted > self.known:
            self._refused.append(_Refused(self.known, min(number, self._doubted), True))
        self._drop(number - self.known)
        self.known = number
        notify: list[Callable[[], None]] = []
        while self._waiting and self._waiting[0].number <= number:
            waiter = self._waiting.popleft()
            notify.append(partial(waiter.notify, self._refused_of(waiter)))
        if self._refused:
            since = min((waiter.since for waiter in self._waiting), default=number)
            while self._refused and self._refused[0].number <= since:
                self._refused.popleft()
        return notify

    def _refused_of(self, waiter: _Waiter) -> list[_Refused]:
        return [each for each in self._refused if each.since < waiter.number and waiter.since < each.number]

    def _drop(self, count: int) -> None:
        runs = self._runs
        while count:
            run = runs.popleft()
            dropped = run.cut(run.first, min(run.end, run.first + count))
            if dropped is not run:
                runs.appendleft(run.behind(dropped))
            count -= len(dropped)
            self.size_bytes -= dropped.body_bytes
