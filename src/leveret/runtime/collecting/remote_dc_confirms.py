"""Publishers' confirms that are held until a downstream has the messages durably (`remote-dc-confirm` of a policy).

A part of a confirm's outcome beside this node's disk and the other nodes' (`ports.ConfirmPort`). The order of what
makes it true:

1. the flush appends the messages to their queue, and the confirm is held with the end of the queue's log;
2. once that is durable here, the collector copies the chunk to the outgoing log: the confirm waits for the end of the
   outgoing log behind the copy from then on, which is beyond every record of it;
3. a downstream transfers the records, and reports the offset before which its *manifest* holds everything: what a
   promotion there would recover. `core.replication.downstream_confirms` keeps the promise. A node that is taking a
   virtual host over reports, too, and does not count: a promotion would recover from the archive of the holder.

So a confirm in time means that both sites have the message on disk. A confirm that is late, or that cannot come because
no downstream is connected, gets the policy's answer: `local` confirms by this site alone, and `nack` refuses. Both are
counted by queue, and the state is an alarm.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import ALL_DOWNSTREAMS, LOCAL
from leveret.core.replication.downstream_confirms import DownstreamConfirms
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.runtime.logs.ports import Part
from leveret.wire.record import is_taking_over

logger = logging.getLogger(__name__)

_MS: Final = 1000
_ANSWERED_MAX: Final = 1000
"""The number of answered confirms that are kept, late ones or others, beside as many as still wait."""


class HeldConfirm:
    """The part of one confirm that belongs to one queue."""

    __slots__ = ("_answer", "count", "end", "promised_end", "queue", "rule")

    def __init__(self, queue: Queue, rule: str, count: int, answer: Callable[[bool], None]) -> None:
        """Hold a confirm of `count` messages, of which the last in this queue is before the present end of its log."""
        self.queue = queue
        self.rule = rule
        self.end = queue.next_offset
        self.promised_end: int | None = None
        """The outgoing log's offset behind the copy; None before that."""
        self.count = count
        self._answer: Callable[[bool], None] | None = answer
        queue.remote_confirms.waiting += count

    @property
    def is_held(self) -> bool:
        """Whether it was not answered yet."""
        return self._answer is not None

    def answer(self, *, ok: bool) -> None:
        """Answer once; a later call does nothing."""
        answer, self._answer = self._answer, None
        if answer is not None:
            self.queue.remote_confirms.waiting -= self.count
            answer(ok)


class RemoteDcConfirms:
    """See the module; ports.ConfirmPort."""

    def __init__(self, logs: dict[str, OutgoingLog]) -> None:
        """Hold nothing; `logs` are the outgoing logs by vhost."""
        self._logs = logs
        self._confirms: dict[str, DownstreamConfirms[HeldConfirm]] = {}
        self._uncopied: dict[Queue, deque[HeldConfirm]] = {}
        self._connections: Counter[tuple[str, str]] = Counter()
        self._due: list[tuple[float, int, HeldConfirm]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._unmet: set[tuple[str, str]] = set()
        self._taking_over: set[tuple[str, str]] = set()
        self._late_ones = 0
        self._late_max = self._due_max = _ANSWERED_MAX

    # -- ports.ConfirmPort -------------------------------------------------------------------

    def concerns(self, queue: object) -> bool:
        """See ports.ConfirmPort: whether a policy asks for it; a queue that ends with its node is never copied."""
        return (
            isinstance(queue, Queue)
            and queue.settings.remote_confirm is not None
            and not queue.is_remote
            and queue.definition.durable
            and queue.owner is None
        )

    def when_kept(self, batch: ConfirmBatch, part: Part) -> None:
        """See ports.ConfirmPort."""
        for queue in batch.queues:
            if self.concerns(queue):
                assert isinstance(queue, Queue)
                self.hold(queue, batch.count, partial(self._decided, batch, queue, part()))

    def _decided(self, batch: ConfirmBatch, queue: Queue, answer: Callable[[bool], None], ok: bool) -> None:
        """Answer, with the reason if it is no: the messages are safe here, and a publisher may want to know."""
        if not ok:
            reason = self.why_unmet(queue) or "no answer in time"
            batch.unmet = (
                f"no other site has what queue '{queue.key[1]}' in vhost '{queue.key[0]}' got, as its policy's "
                f"remote-dc-confirm asks: {reason}; the messages are in the queue here"
            )
        answer(ok)

    def hold(self, queue: Queue, messages: int, answer: Callable[[bool], None]) -> None:
        """Answer once downstreams have everything before the present end of the queue's log; or as the policy says."""
        rule = queue.settings.remote_confirm or ""
        held = HeldConfirm(queue, rule, messages, answer)
        if self.why_unmet(queue):
            self._answer_alone(held)
            return
        self._uncopied.setdefault(queue, deque()).append(held)
        self._copied(self._logs[queue.key[0]], queue)
        due_s = asyncio.get_running_loop().time() + queue.settings.remote_confirm_timeout_ms / _MS
        heappush(self._due, (due_s, next(self._numbers), held))
        if len(self._due) > self._due_max:
            # Behind one that waits for hours, answered ones would stay as long.
            self._due = [each for each in self._due if each[2].is_held]
            heapify(self._due)
            self._due_max = max(_ANSWERED_MAX, 2 * len(self._due))
        self._arm()

    # -- what happens -------------------------------------------------------------------------

    def opened(self, vhost: str) -> None:
        """An outgoing log is open; the downstreams that it knows are not connected yet."""
        log, confirms = self._logs[vhost], DownstreamConfirms[HeldConfirm]()
        self._confirms[vhost] = confirms
        log.copied = self._copied
        log.waiting = lambda: confirms.waiting
        for reference, each in log.downstreams.by_reference.items():
            if not is_taking_over(reference):
                confirms.known(reference, each.offset)

    def closed(self, vhost: str) -> None:
        """An outgoing log is closed: nothing in it is transferred any more."""
        self._confirms.pop(vhost, None)
        for queue in [each for each in self._uncopied if each.key[0] == vhost]:
            for held in self._uncopied.pop(queue):
                self._answer_alone(held)
        for _, _, held in list(self._due):
            if held.queue.key[0] == vhost:
                self._answer_alone(held)

    def _copied(self, log: OutgoingLog, queue: Queue) -> None:
        """A queue's chunk is in its outgoing log: what waited for that waits for the log's end."""
        uncopied = self._uncopied.get(queue)
        if uncopied is None:
            return
        position, confirms = log.position_of(queue), self._confirms.get(queue.key[0])
        while uncopied and uncopied[0].end <= position:
            held = uncopied.popleft()
            if held.is_held and confirms is not None:
                held.promised_end = log.log.next_offset
                _keep(confirms.promise(held.rule, held.promised_end, held))
        if not uncopied:
            del self._uncopied[queue]

    def acked(self, vhost: str, reference: str, offset: int) -> None:
        """A downstream's manifest holds everything of the vhost before an offset that the log has committed."""
        confirms = self._confirms.get(vhost)
        if is_taking_over(reference):
            if (vhost, reference) not in self._taking_over:
                self._taking_over.add((vhost, reference))
                # Under its other name it counted, and is not waited for now.
                self.forget()
        elif confirms is not None:
            is_new = reference not in confirms.references
            _keep(confirms.acked(reference, offset))
            if is_new:
                # It may be one that had another name before, which nobody is to wait for.
                self.forget()
            self._tell_met(vhost, confirms)

    def dropped(self, vhost: str, first: int) -> None:
        """The outgoing log begins at `first` now: a downstream that lacks an earlier record never gets it from here."""
        for _, _, held in list(self._due):
            if held.promised_end is not None and held.promised_end <= first and held.queue.key[0] == vhost:
                self._answer_alone(held, "the outgoing log dropped the messages")

    def came(self, vhost: str, reference: str) -> None:
        """A connection of a downstream has begun to report."""
        self._connections[vhost, reference] += 1

    def left(self, vhost: str, reference: str) -> None:
        """That connection is gone; the downstream may have others."""
        self._connections[vhost, reference] -= 1
        if self._connections[vhost, reference] <= 0:
            del self._connections[vhost, reference]
            self._taking_over.discard((vhost, reference))
            if vhost in self._confirms:
                self._confirms[vhost].left(reference)

    def forget(self) -> None:
        """An operator had downstreams forgotten: whom the logs do not know is not waited for."""
        for vhost, confirms in self._confirms.items():
            for reference in confirms.references - self._logs[vhost].downstreams.by_reference.keys():
                _keep(confirms.forgotten(reference))

    # -- late, or impossible ------------------------------------------------------------------

    def why_unmet(self, queue: Queue) -> str:
        """Why a confirm of the queue cannot come from downstreams now; empty if it can."""
        vhost, rule = queue.key[0], queue.settings.remote_confirm or ""
        confirms = self._confirms.get(vhost)
        if not queue.replicated or confirms is None:
            return "the queue is not collected for downstreams"
        if confirms.can_be_met(rule):
            return ""
        away = len(confirms.references - confirms.connected)
        if rule == ALL_DOWNSTREAMS and confirms.connected:
            return f"{away} of {len(confirms.references)} known downstreams are not connected"
        if any(each == vhost for each, _ in self._taking_over):
            return "a node of the downstream is taking the virtual host over, and does not have all of it yet"
        return "no downstream is connected"

    def _arm(self) -> None:
        while self._due and not self._due[0][2].is_held:
            heappop(self._due)
        if not self._due:
            return
        due_s = self._due[0][0]
        if self._timer is not None and self._timer_due_s > due_s:
            # A policy with a shorter wait.
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            # The time is kept here, because uvloop's handle of a call that is due at once has none.
            self._timer, self._timer_due_s = asyncio.get_running_loop().call_at(due_s, self._late), due_s

    def _late(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        while self._due and (self._due[0][0] <= now_s or not self._due[0][2].is_held):
            held = heappop(self._due)[2]
            if held.is_held:
                self._late_ones += 1
                self._answer_alone(held)
        if self._late_ones > self._late_max:
            self._let_go_of_late_ones()
        self._arm()

    def _let_go_of_late_ones(self) -> None:
        """Free the confirms that were answered: a downstream that stays connected and acks nothing frees none."""
        kept = {queue: deque(filter(_is_held, uncopied)) for queue, uncopied in self._uncopied.items()}
        self._uncopied = {queue: uncopied for queue, uncopied in kept.items() if uncopied}
        left = sum(map(len, self._uncopied.values()))
        for confirms in self._confirms.values():
            confirms.keep_only(_is_held)
            left += confirms.waiting
        self._late_ones, self._late_max = 0, max(_ANSWERED_MAX, left)

    def _answer_alone(self, held: HeldConfirm, reason: str = "no answer in time") -> None:
        """Give the answer that the policy has for a confirm without downstreams, and count it."""
        if not held.is_held:
            return
        queue = held.queue
        is_confirmed = queue.settings.remote_confirm_on_timeout == LOCAL
        if is_confirmed:
            queue.remote_confirms.confirmed_locally += held.count
        else:
            queue.remote_confirms.refused += held.count
        if (queue.key[0], held.rule) not in self._unmet:
            self._unmet.add((queue.key[0], held.rule))
            logger.warning(
                "remote_dc_confirm_unmet vhost=%s queue=%s rule=%s reason=%s action=%s",
                *queue.key,
                held.rule,
                self.why_unmet(queue) or reason,
                "confirm_by_this_site_alone" if is_confirmed else "nack",
            )
        held.answer(ok=is_confirmed)

    def _tell_met(self, vhost: str, confirms: DownstreamConfirms[HeldConfirm]) -> None:
        for key in [each for each in self._unmet if each[0] == vhost and confirms.can_be_met(each[1])]:
            self._unmet.discard(key)
            logger.info("remote_dc_confirm_met vhost=%s rule=%s", *key)


def _is_held(held: HeldConfirm) -> bool:
    return held.is_held


def _keep(kept: list[HeldConfirm]) -> None:
    for held in kept:
        held.answer(ok=True)
