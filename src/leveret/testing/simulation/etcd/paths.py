"""The paths between simulated processes and a simulated etcd: random delays, cuts, and late messages.

Requests and answers are single messages that may overtake each other, because each may have a connection of its own.
In a cut a message is lost, or it is held and arrives after the cut has healed, as TCP sends it again although its
sender may have given up. The reports of a watch are a stream: they arrive in order, and a cut holds all of them.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Final, NamedTuple

from leveret.testing.simulation.machine.process import SimulatedProcess

DELAY_S_MAX: Final = 0.004
"""The longest delay of a request or an answer: half a round trip and the sync of etcd's disk."""
HELD_S_MAX: Final = 60.0
"""The time for which TCP sends a lost message again."""
CLOCK_RESOLUTION_S: Final = 1e-6
"""A timer may fire this much early."""

Action = Callable[[], None]


class Asker(NamedTuple):
    """The sender of a request, and the endpoint that it uses."""

    process: SimulatedProcess | None
    url: str

    @property
    def host(self) -> str:
        """The name of the process; empty for the simulation's own."""
        return self.process.name if self.process else ""


class EtcdPaths:
    """See the module.

    Attributes:
        delay_s_max: the longest delay of a message; a world makes etcd slow with it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        """Begin with all paths open; arrivals run in the present context."""
        self.delay_s_max = DELAY_S_MAX
        self._loop, self._rng, self._context = loop, rng, copy_context()
        self._cut_requests: set[str] = set()
        self._cut_answers: set[str] = set()
        self._held: list[tuple[float, Action]] = []

    def cut(self, name: str, *, requests: bool, answers: bool) -> None:
        """Cut the requests or the answers of a host or an endpoint."""
        self._cut_requests |= {name} if requests else set()
        self._cut_answers |= {name} if answers else set()

    def heal(self, name: str) -> None:
        """End the cuts of a host or an endpoint; held messages arrive unless they are too old."""
        self._cut_requests.discard(name)
        self._cut_answers.discard(name)
        held, self._held = self._held, []
        oldest_s = self._loop.time() - HELD_S_MAX
        for sent_s, action in held:
            if sent_s >= oldest_s:
                self.after(self.delay_s(), action)

    def delay_s(self) -> float:
        """Return the delay of the next message."""
        return self._rng.uniform(0, self.delay_s_max)

    def after(self, delay_s: float, action: Action) -> None:
        """Call `action` later, in etcd's context, even if the process that caused it is killed or paused."""
        self._loop.call_later(delay_s, action, context=self._context)

    def request(self, asker: Asker, action: Action) -> None:
        """Call `action` when a request arrives, if it arrives."""
        self.after(self.delay_s(), lambda: self._arrive(asker, self._cut_requests, action))

    def answer(self, asker: Asker, action: Action) -> None:
        """Call `action` when an answer arrives, if it arrives."""
        self.after(self.delay_s(), lambda: self._arrive(asker, self._cut_answers, action))

    def _arrive(self, asker: Asker, cuts: set[str], action: Action) -> None:
        if not _is_cut(asker, cuts):
            action()
        elif self._rng.random() < 0.5:  # one or the other
            self._held.append((self._loop.time(), lambda: self._arrive(asker, cuts, action)))

    def is_silent(self, asker: Asker) -> bool:
        """Return whether no answer arrives now."""
        return _is_cut(asker, self._cut_answers)

    def now_s(self) -> float:
        """Return the simulation's time."""
        return self._loop.time()


class OrderedPath:
    """A stream from etcd to one asker: messages arrive in order and are never lost, but may be late."""

    def __init__(self, paths: EtcdPaths, asker: Asker) -> None:
        """Begin with an empty stream."""
        self._paths, self._asker = paths, asker
        self._under_way: deque[tuple[float, Action]] = deque()

    def send(self, action: Action) -> None:
        """Send a message; `action` is called when it and all earlier messages have arrived."""
        earliest_s = self._under_way[-1][0] if self._under_way else 0.0
        arrives_s = max(earliest_s, self._paths.now_s() + self._paths.delay_s())
        self._under_way.append((arrives_s, action))
        self._paths.after(arrives_s - self._paths.now_s(), self.deliver)

    def deliver(self) -> None:
        """Deliver the messages that are due; also called after a cut has healed."""
        now_s = self._paths.now_s() + CLOCK_RESOLUTION_S
        while self._under_way and self._under_way[0][0] <= now_s and not self._paths.is_silent(self._asker):
            self._under_way.popleft()[1]()


def _is_cut(asker: Asker, cuts: set[str]) -> bool:
    return asker.host in cuts or asker.url in cuts
