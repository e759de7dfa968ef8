"""Sessions: the logged-in users, and the watches of sites for them. Tokens and passwords are in memory only."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from leveret.console.jobs.jobs import Jobs
from leveret.console.judging.safety import SafetyRow, safety_rows
from leveret.console.settings import ConsoleSettings, SiteAddress
from leveret.console.sites.client import SiteRefuses, SiteSilent
from leveret.console.sites.documents import NotUnderstood
from leveret.console.sites.facts import SiteFacts
from leveret.console.sites.watch import SiteWatch, WatchPool, clock_ms
from leveret.model.errors import LeveretError

IDLE_S: Final = 30 * 60.0
"""An open page sends requests every few seconds; so a session ends half an hour after its last page was closed."""
WHOLE_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 64
_LOGIN_S: Final = 5.0
_TOKEN_BYTES: Final = 32
_ROWS_S: Final = 1.5
_READ_S: Final = 0.5


class LoginFailed(LeveretError):
    """No site accepted the user and the password; `is_refused` if a site refused them, else no site answered."""

    def __init__(self, reason: str, *, is_refused: bool) -> None:
        super().__init__(reason)
        self.is_refused = is_refused


@dataclass(eq=False)
class ConsoleSession:
    """The session of one log-in; `watches` are in the order of the sites."""

    user: str
    watches: dict[str, SiteWatch]
    began_s: float
    seen_s: float
    _rows: list[SafetyRow] = field(default_factory=list)
    _rows_at_s: float = float("-inf")
    _rows_of: list[int | None] = field(default_factory=list)

    @property
    def facts(self) -> list[SiteFacts]:
        """The facts about each site."""
        return [watch.facts for watch in self.watches.values()]

    @property
    def is_reading(self) -> bool:
        """Whether a site has not been read for the first time yet."""
        return not all(watch.has_read.is_set() for watch in self.watches.values())

    async def wait_read(self) -> None:
        """Wait until every site was read once, at most `_READ_S`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READ_S):
                for watch in list(self.watches.values()):
                    await watch.has_read.wait()

    def rows(self) -> list[SafetyRow]:
        """Return the rows of `Am I safe?`, from the newest lists of queues, and at most `_ROWS_S` old."""
        now_s, lists = time.monotonic(), [facts.queues_ms for facts in self.facts]
        if now_s - self._rows_at_s > _ROWS_S or lists != self._rows_of:
            self._rows, self._rows_at_s, self._rows_of = safety_rows(self.facts, clock_ms()), now_s, lists
        return self._rows

    def is_over(self, now_s: float) -> bool:
        """Return whether the session has expired."""
        return now_s - self.seen_s > IDLE_S or now_s - self.began_s > WHOLE_S


class Sessions:
    """All sessions, by the token in the browser's cookie, and the `jobs` that were begun in any of them."""

    def __init__(self, settings: ConsoleSettings) -> None:
        """Begin without sessions."""
        self._sites = settings.sites
        self._pool = WatchPool()
        self.jobs = Jobs(self._pool)
        self._by_token: dict[str, ConsoleSession] = {}

    async def log_in(self, user: str, password: str) -> str:
        """Begin a session; return its token. Sites that do not answer now receive the log-in later.

        Raises:
            LoginFailed: no site accepts this user and password, no site answers, or too many sessions are open.
        """
        await self.end_old()
        watches: list[SiteWatch] = []
        try:
            watches += (self._pool.take(site, user, password) for site in self._sites)
            errors = await asyncio.gather(*(_identified(watch) for watch in watches))
            if None not in errors:
                raise _failed(self._sites, errors)
            if len(self._by_token) >= SESSIONS_MAX:
                raise LoginFailed(f"{SESSIONS_MAX} sessions are open: log out elsewhere", is_refused=False)
        except BaseException:
            await self._release(watches)
            raise
        for watch, error in zip(watches, errors, strict=True):
            if not isinstance(error, SiteRefuses):
                watch.start()
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        now_s = time.monotonic()
        self._by_token[token] = ConsoleSession(
            user, {each.facts.site: each for each in watches}, now_s, now_s
        )
        return token

    async def log_in_at(self, session: ConsoleSession, name: str, user: str, password: str) -> None:
        """Watch one site of a session as another user.

        Raises:
            LoginFailed: there is no such site, or it does not accept this user and password, or does not answer; or
                the session ended meanwhile.
        """
        site = next((site for site in self._sites if site.name == name), None)
        if site is None:
            raise LoginFailed(f"there is no site {name}", is_refused=False)
        watch = self._pool.take(site, user, password)
        try:
            error = await _identified(watch)
            if error is not None:
                raise _failed([site], [error])
            # A log-out meanwhile has given the session's watches back, and would not give this one back.
            if session not in self._by_token.values():
                raise LoginFailed("the session has ended: log in again", is_refused=False)
        except BaseException:
            await self._pool.release(watch)
            raise
        watch.start()
        before, session.watches[name] = session.watches[name], watch
        await self._pool.release(before)

    def of(self, token: str | None) -> ConsoleSession | None:
        """Return the session of a token, and note its use; None if there is no such session, or it has ended."""
        session = self._by_token.get(token or "")
        now_s = time.monotonic()
        if session is None or session.is_over(now_s):
            return None
        session.seen_s = now_s
        return session

    async def log_out(self, token: str | None) -> None:
        """End the session of a token, if there is one."""
        session = self._by_token.pop(token or "", None)
        if session is not None:
            await self._release(list(session.watches.values()))

    async def end_old(self) -> None:
        """End the expired sessions."""
        now_s = time.monotonic()
        for token in [token for token, session in self._by_token.items() if session.is_over(now_s)]:
            await self.log_out(token)

    async def close(self) -> None:
        """End all jobs and sessions."""
        await self.jobs.close()
        for token in list(self._by_token):
            await self.log_out(token)

    async def _release(self, watches: Sequence[SiteWatch]) -> None:
        for watch in watches:
            await self._pool.release(watch)


async def _identified(watch: SiteWatch) -> LeveretError | None:
    """Request the user's identity from the site; return the error if that fails."""
    try:
        async with asyncio.timeout(_LOGIN_S):
            await watch.identify()
    except TimeoutError:
        return SiteSilent(f"no answer within {_LOGIN_S:.0f} s")
    except (SiteRefuses, SiteSilent, NotUnderstood) as error:
        return error
    return None


def _failed(sites: Sequence[SiteAddress], errors: Sequence[LeveretError | None]) -> LoginFailed:
    text = "; ".join(f"{site.name}: {error}" for site, error in zip(sites, errors, strict=True))
    is_refused = any(isinstance(error, SiteRefuses) for error in errors)
    return LoginFailed(text, is_refused=is_refused)
