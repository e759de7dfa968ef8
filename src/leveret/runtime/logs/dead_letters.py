"""Dead letters are settled in their queue once all targets have them, and published again only where they lack.

With at-least-once that goes on for as long as it takes: a letter that no exchange routes, or that a target has no room
for, is published again every few seconds (`engine.RETRY_MS`). What is told of it in the log is told once, until all
letters of the queue are settled.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Set
from functools import partial
from typing import TypeAlias
from weakref import WeakSet

from leveret.core.broker.broker import Broker
from leveret.core.broker.dead_letters import RoutedLetters, route_dead_letters
from leveret.core.queues.confirms import ConfirmOutcome
from leveret.core.queues.dead_lettering import NOT_STORED
from leveret.core.queues.messages import count_of
from leveret.core.queues.queue import Queue
from leveret.core.rules.validation import queue_type
from leveret.model.reasons import Reason
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.ports import ReplicationPort

logger = logging.getLogger(__name__)

Refused: TypeAlias = dict[Queue, list[tuple[int, int]]]
"""By target of dead letters, what it did not take; see RoutedLetters.parted."""


class DeadLetterPublisher:
    """See the module.

    Attributes:
        published: what this flush has published, until `promise`.
    """

    def __init__(
        self,
        broker: Broker,
        commit: GroupCommit,
        gone: set[Queue],
        settled: Callable[[Queue], None],
        once_known: Callable[[Iterable[Queue], Callable[[], None]], None],
        repeat_at_ms: Callable[[], int],
    ) -> None:
        """Begin without letters.

        Args:
            broker: routes the letters.
            commit: the group commit of the logs here.
            gone: the queues whose log files were removed: they keep nothing of what they took.
            settled: called with a queue some of whose dead letters are settled, or wait to be published again.
            once_known: calls back once all nodes know these queues, in which the letters are durable.
            repeat_at_ms: returns the time at which letters that are refused now are published again.
        """
        self._broker = broker
        self._commit = commit
        self._gone = gone
        self._settled = settled
        self._once_known = once_known
        self._repeat_at_ms = repeat_at_ms
        self.published: list[RoutedLetters] = []
        self._reported: WeakSet[Queue] = WeakSet()

    def publish(self, queue: Queue, now_ms: int) -> None:
        """Publish a queue's dead letters; `promise` settles them there only after they are safe."""
        for letters in queue.dead_lettering.take():
            self.published.append(route_dead_letters(self._broker, queue, letters, now_ms // 1000))

    def promise(self, failed: Set[Queue], port: ReplicationPort | None) -> None:
        """Keep dead letters in their queue until all targets have them, for which a disk may take hours.

        Args:
            failed: the queues that took only the first messages of this flush, or none.
            port: the other nodes that may have to keep them.
        """
        published, self.published = self.published, []
        waiting: list[tuple[RoutedLetters, Refused]] = []
        for each in published:
            refused: Refused = {
                target: _behind(target.published_total) for target in each.takers.keys() & failed
            }
            if port is not None and any(map(port.concerns, each.takers)):
                self._await_nodes(each, refused, port)
            else:
                waiting.append((each, refused))
        if waiting:
            self._commit.when_durable(lambda: self._settle_all(waiting))

    def _await_nodes(self, published: RoutedLetters, refused: Refused, port: ReplicationPort) -> None:
        """As above, if other nodes have to keep the dead letters."""
        outcome = ConfirmOutcome(lambda _: self._settle_or_repeat(published, refused))
        durable = partial(outcome.part(), True)
        self._commit.when_durable(partial(self._once_known, published.takers, durable))
        for target, taken in published.takers.items():
            if target.is_remote:
                note = partial(_note_refused, refused, target, outcome.part())
                port.when_decided(target, taken[0].before, taken[-1].place, note, until_taken=published.keeps)
            else:
                port.when_taken((target,), partial(_noting_part, refused, target, outcome))
        outcome.seal()

    def _settle_all(self, waiting: list[tuple[RoutedLetters, Refused]]) -> None:
        for published, refused in waiting:
            self._once_known(published.takers, partial(self._settle_or_repeat, published, refused))

    def _settle_or_repeat(self, published: RoutedLetters, refused: Refused) -> None:
        """Settle what all targets have, and publish the rest again later."""
        queue, letters, takers = published.queue, published.letters, published.takers
        if self._gone:
            refused |= dict.fromkeys(takers.keys() & self._gone, _behind(0))
        is_partial = refused or published.needs_repeat
        runs, again = published.parted(refused) if is_partial else (letters.runs, [])
        for run in runs:
            if run.first != NOT_STORED:
                queue.settle(run.first, len(run), Reason.DEAD_LETTERED)
        if published.keeps:
            self._broker.dead_letters_confirmed[queue_type(queue.definition.arguments)] += count_of(runs)
            self._tell(published, waits=bool(again))
        queue.dead_lettering.finished(letters, again, self._repeat_at_ms())
        self._settled(queue)

    # -- what the log is told -----------------------------------------------------------------

    def tell_weak(self, queues: Iterable[Queue]) -> None:
        """Log which of the queues ask for at-least-once in vain, one for each reason."""
        others: dict[str, list[Queue]] = {}
        for queue in queues:
            if why := queue.settings.why_dead_letters_are_dropped:
                others.setdefault(why, []).append(queue)
        for why, (first, *rest) in others.items():
            text = "dead_letters_at_most_once vhost=%s queue=%s others=%d reason=%s"
            logger.warning(text, *first.key, len(rest), why)

    def _tell(self, published: RoutedLetters, *, waits: bool) -> None:
        """Log once that dead letters of a queue wait, and that none does any more."""
        queue = published.queue
        if waits and queue not in self._reported:
            self._reported.add(queue)
            why = published.why_repeated or "a target has not taken them"
            logger.warning("dead_letters_wait vhost=%s queue=%s reason=%s action=retry", *queue.key, why)
        elif not queue.dead_lettering.count and queue in self._reported:
            self._reported.discard(queue)
            logger.info("dead_letters_go_on vhost=%s queue=%s", *queue.key)


def _behind(place: int) -> list[tuple[int, int]]:
    return [(place, sys.maxsize)]


def _noting_part(refused: Refused, target: Queue, outcome: ConfirmOutcome) -> Callable[[bool], None]:
    """Make a part that notes a failure: the next leader of the target may lack all that this node gave it."""
    then = outcome.part()

    def known(ok: bool) -> None:
        if not ok:
            # What that leader has is there twice then, which is better than to lose the rest.
            refused[target] = _behind(0)
        then(True)

    return known


def _note_refused(
    refused: Refused, target: Queue, then: Callable[[bool], None], ranges: list[tuple[int, int]]
) -> None:
    if ranges:
        refused[target] = ranges
    then(True)
