"""The ways between simulated processes and a simulated etcd: random delays, cuts, and what arrives late.

A request and an answer are messages of their own, which overtake each other, as each may have a connection of its
own. In a cut a message is lost, or it is held and arrives when the cut has healed, as TCP sends it again though nobody
waits for it any more. The reports of a watch are a stream: they arrive in order, and in a cut all of them are held.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Final, NamedTuple

from leveret.testing.simulation.process import SimulatedProcess

DELAY_S_MAX: Final = 0.004
"""Of a request, and of an answer: half a round trip and the sync of etcd's disk."""
HELD_S_MAX: Final = 60.0
"""TCP sends again for this long what did not arrive."""
CLOCK_RESOLUTION_S: Final = 1e-6
"""A timer may come this much early."""

Action = Callable[[], None]


class Asker(NamedTuple):
    """Who asks, and at which endpoint."""

    process: SimulatedProcess | None
    url: str

    @property
    def host(self) -> str:
        """The name of the process; empty for the simulation's own."""
        return self.process.name if self.process else ""


class EtcdPaths:
    """See the module.

    Attributes:
        delay_s_max: how long a message may take; a world makes etcd slow with it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        """All paths are open; what arrives is done in the context in which this is made."""
        self.delay_s_max = DELAY_S_MAX
        self._loop, self._rng, self._context = loop, rng, copy_context()
        self._cut_requests: set[str] = set()
        self._cut_answers: set[str] = set()
        self._held: list[tuple[float, Action]] = []

    def cut(self, name: str, *, requests: bool, answers: bool) -> None:
        """Have nothing arrive from, or at, a host; or at, or from, an endpoint."""
        self._cut_requests |= {name} if requests else set()
        self._cut_answers |= {name} if answers else set()

    def heal(self, name: str) -> None:
        """End the cuts of a host or an endpoint; what is held arrives, if it is not too old."""
        self._cut_requests.discard(name)
        self._cut_answers.discard(name)
        held, self._held = self._held, []
        oldest_s = self._loop.time() - HELD_S_MAX
        for sent_s, action in held:
            if sent_s >= oldest_s:
                self.after(self.delay_s(), action)

    def delay_s(self) -> float:
        """How long the next message takes."""
        return self._rng.uniform(0, self.delay_s_max)

    def after(self, delay_s: float, action: Action) -> None:
        """Do something later, in etcd's context: it happens though the process that caused it is killed or paused."""
        self._loop.call_later(delay_s, action, context=self._context)

    def request(self, asker: Asker, action: Action) -> None:
        """Do something when a request has arrived, if it does."""
        self.after(self.delay_s(), lambda: self._arrive(asker, self._cut_requests, action))

    def answer(self, asker: Asker, action: Action) -> None:
        """Do something when an answer has arrived, if it does."""
        self.after(self.delay_s(), lambda: self._arrive(asker, self._cut_answers, action))

    def _arrive(self, asker: Asker, cuts: set[str], action: Action) -> None:
        if not _is_cut(asker, cuts):
            action()
        elif self._rng.random() < 0.5:  # one or the other
            self._held.append((self._loop.time(), lambda: self._arrive(asker, cuts, action)))

    def is_silent(self, asker: Asker) -> bool:
        """Whether no answer arrives now."""
        return _is_cut(asker, self._cut_answers)

    def now_s(self) -> float:
        """The simulation's time."""
        return self._loop.time()


class OrderedPath:
    """What etcd sends to one asker, in order; nothing is lost, but all may come late."""

    def __init__(self, paths: EtcdPaths, asker: Asker) -> None:
        """Nothing is under way."""
        self._paths, self._asker = paths, asker
        self._under_way: deque[tuple[float, Action]] = deque()

    def send(self, action: Action) -> None:
        """Do something when all that was sent before has arrived, and this."""
        earliest_s = self._under_way[-1][0] if self._under_way else 0.0
        arrives_s = max(earliest_s, self._paths.now_s() + self._paths.delay_s())
        self._under_way.append((arrives_s, action))
        self._paths.after(arrives_s - self._paths.now_s(), self.deliver)

    def deliver(self) -> None:
        """Have arrive what should have by now; to be called when a cut has healed, too."""
        now_s = self._paths.now_s() + CLOCK_RESOLUTION_S
        while self._under_way and self._under_way[0][0] <= now_s and not self._paths.is_silent(self._asker):
            self._under_way.popleft()[1]()


def _is_cut(asker: Asker, cuts: set[str]) -> bool:
    return asker.host in cuts or asker.url in cuts
