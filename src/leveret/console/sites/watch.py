"""Watches a site for one user: requests documents on schedule, and stores them. No other user sees the documents."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from leveret.console.settings import SiteAddress
from leveret.console.sites.client import SiteClient, SiteRefuses, SiteSilent
from leveret.console.sites.documents import NotUnderstood, PlotsDocument
from leveret.console.sites.facts import OFTEN, SELDOM, DocumentRequest, SiteFacts
from leveret.console.sites.samples import PAST, Samples
from leveret.console.sites.schedule import OFTEN_MAX_S, OFTEN_S, SELDOM_MAX_S, SELDOM_S, PollSchedule
from leveret.model.tags import tags_of

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_WHOLE_S: Final = 30.0
"""The time limit of a whole document."""
_REFUSED_S: Final = 60.0
"""The wait before the next request to a site that refused the user: a site counts failed log-ins."""
_WAIT_S: Final = (0.05, 1.0)


def clock_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class SiteWatch:
    """The watch of one site for one user.

    Attributes:
        facts: the facts about the site; changed in place.
        samples: the numbers for plots.
        has_read: set once the site was read for the first time, or does not answer, or refuses.
    """

    def __init__(self, site: SiteAddress, user: str, password: str, askers: Mapping[str, int]) -> None:
        """Send no request yet; `askers` has the number of watches of each site."""
        self.client = SiteClient(site, user, password)
        self.facts = SiteFacts(site.name, user)
        self.samples = Samples()
        self.has_read = asyncio.Event()
        self._askers = askers
        self._often = PollSchedule(OFTEN_S, OFTEN_MAX_S)
        self._seldom = PollSchedule(SELDOM_S, SELDOM_MAX_S)
        self._lacks_past = True
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send requests."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch(), name=f"watch {self.facts.site}")

    async def stop(self) -> None:
        """Stop, and forget the password."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.client.close()

    def hurry(self) -> None:
        """Make all rounds due at once, because of a change at the site."""
        self._often.hurry()
        self._seldom.hurry()

    async def identify(self) -> None:
        """Request the user's tags from the site.

        Raises:
            SiteRefuses, SiteSilent, NotUnderstood: as for `SiteClient.ask`.
        """
        try:
            who = await _whole("whoami", self.client.who())
        except SiteRefuses as refusal:
            self.has_read.set()
            self.facts.refuses(str(refusal), clock_ms())
            raise
        except (SiteSilent, NotUnderstood) as error:
            self.has_read.set()
            self._note_silence(str(error))
            raise
        self.facts.tags = tags_of(who.tags)
        self.facts.heard(clock_ms())

    async def _watch(self) -> None:
        while True:
            now_s = time.monotonic()
            try:
                if self._often.is_due(now_s) and (self.facts.refused or self.facts.heard_ms is None):
                    await self.identify()
                await self._rounds()
            except SiteRefuses as refusal:
                self.facts.refuses(str(refusal), clock_ms())
                self._postpone(_REFUSED_S)
            except (SiteSilent, NotUnderstood) as error:
                self._note_silence(str(error))
                self._postpone()
            except (ArithmeticError, LookupError, TypeError, ValueError):
                # A fault of the console at one site's answers: the site is asked again, and the page says so meanwhile.
                logger.exception("site_not_understood site=%s", self.facts.site)
                self._note_silence("the console failed at its answer; the console's log has the reason")
                self._postpone(_REFUSED_S)
            self.has_read.set()
            now_s = time.monotonic()
            wait_s = min(self._often.due_in_s(now_s), self._seldom.due_in_s(now_s))
            await asyncio.sleep(min(max(wait_s, _WAIT_S[0]), _WAIT_S[1]))

    async def _rounds(self) -> None:
        """Send the due requests; at first all at the same time, because a user has just logged in and waits."""
        if self.has_read.is_set():
            await self._round(self._often, OFTEN)
            await self._round(self._seldom, SELDOM)
            await self._ask_past()
            return
        began_s = time.monotonic()
        rounds = (self._round(self._seldom, SELDOM), self._round(self._often, OFTEN))
        ended = await asyncio.gather(*rounds, return_exceptions=True)
        # The duration of an answer that waited for the list of queues does not measure its own work.
        self._often.took(began_s, (), self._askers.get(self.facts.site, 1))
        for error in ended:
            if error is not None:
                raise error

    async def _round(self, schedule: PollSchedule, questions: Sequence[DocumentRequest]) -> None:
        """Request the documents of a due round; a malformed one does not affect the others unless all are malformed."""
        began_s = time.monotonic()
        if not schedule.is_due(began_s):
            return
        failed: NotUnderstood | None = None
        count = 0
        answers_s: list[float] = []
        for question in questions:
            asked_s = time.monotonic()
            try:
                await self._ask(question)
            except NotUnderstood as error:
                failed, count = error, count + 1
                self.facts.troubles[question.name] = str(error)
            answers_s.append(time.monotonic() - asked_s)
        if failed is not None and count == len(questions):
            raise failed
        schedule.took(began_s, answers_s, self._askers.get(self.facts.site, 1))
        if schedule is self._often:
            self.samples.add(self.facts, clock_ms())

    async def _ask_past(self) -> None:
        """Request the nodes' history for plots, once, and again after a silence."""
        if not self._lacks_past or self.facts.plots is None or self.facts.queues_ms is None:
            return
        self._lacks_past = False
        for age_s, step_s in PAST:
            path = f"/api/replication/plots?age_s={age_s}&step_s={step_s}"
            try:
                document = await _whole("plots", self.client.ask(path, PlotsDocument))
            except NotUnderstood as error:
                self.facts.troubles["plots"] = str(error)
                return
            if document is not None:
                self.samples.take(document, step_s * 1000)

    async def _ask(self, question: DocumentRequest) -> None:
        try:
            is_large = question.name == "queues"
            asked = self.client.ask(question.path, question.kind, is_large=is_large)
            answer = await _whole(question.name, asked)
        except SiteRefuses as refusal:
            if refusal.is_login:
                raise
            raise NotUnderstood(f"the site declines: {refusal}") from None
        self.facts.take(question, answer, clock_ms())

    def _note_silence(self, error: str) -> None:
        if self.facts.alive_since_ms is not None:
            logger.warning("site_not_heard site=%s error=%s", self.facts.site, error)
        self.facts.silent(error)
        self._lacks_past = True

    def _postpone(self, *wait_s: float) -> None:
        now_s = time.monotonic()
        self._often.failed(now_s, *wait_s)
        self._seldom.failed(now_s, *wait_s)


async def _whole(name: str, asked: Coroutine[Any, Any, _T]) -> _T:
    """Wait for a whole answer: one that comes in drops would hold the watch up for ever.

    Raises:
        SiteSilent: the answer takes too long. And what `asked` raises.
    """
    try:
        async with asyncio.timeout(_WHOLE_S):
            return await asked
    except TimeoutError:
        raise SiteSilent(f"{name}: no whole answer within {_WHOLE_S:.0f} s") from None


class WatchPool:
    """The watches of all sessions: two sessions of the same user share one watch of a site."""

    def __init__(self) -> None:
        """Begin without watches."""
        self._watches: dict[tuple[str, str, str], SiteWatch] = {}
        self._holders: Counter[SiteWatch] = Counter()
        self._askers: Counter[str] = Counter()

    def take(self, site: SiteAddress, user: str, password: str) -> SiteWatch:
        """Return the watch of a site for a user, without starting it."""
        key = (site.name, user, password)
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = SiteWatch(site, user, password, self._askers)
            self._askers[site.name] += 1
        self._holders[watch] += 1
        return watch

    def share(self, watch: SiteWatch) -> None:
        """Hold a watch that another holder has, too; each holder gives it back."""
        if watch in self._holders:
            self._holders[watch] += 1

    async def release(self, watch: SiteWatch) -> None:
        """Give a watch back; stop it if no other holder has it."""
        if watch not in self._holders:
            return
        self._holders[watch] -= 1
        if not self._holders[watch]:
            del self._holders[watch]
            self._watches = {key: each for key, each in self._watches.items() if each is not watch}
            self._askers[watch.facts.site] -= 1
            await watch.stop()
