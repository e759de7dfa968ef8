"""A client of one site's HTTP API, as one user. Answers are bounded in size and time.

A site may have several nodes that give the same answers, as a cluster has. The client uses one of them until that one
is unreachable, then the next.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import httpx

from leveret.console.settings import SiteAddress
from leveret.console.sites.documents import NotUnderstood, WhoAmI, read_document
from leveret.model.errors import ConfigError, LeveretError

_CONNECT_S: Final = 3.0
_READ_S: Final = 8.0
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Room for the list of a hundred thousand queues."""
_SMALL_BYTES_MAX: Final = 8 * 1024 * 1024
"""Room for any other document: several users may read a site that answers too much."""
_LINE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Room for a message of 16 MB in base64."""
_REASON_CHARACTERS_MAX: Final = 500
_HAS_NOT: Final = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
)
"""RabbitMQ answers 401 without a challenge to a known user that lacks a tag."""


class SiteSilent(LeveretError):
    """The site does not answer in full and in time."""


class SiteRefuses(LeveretError):
    """The site answered with a refusal; `is_login` if it does not accept the user or the password."""

    def __init__(self, status: int, reason: str, *, is_login: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.is_login = is_login


class SiteClient:
    """See the module. The password is in memory only, and in no text of this object."""

    def __init__(self, site: SiteAddress, user: str, password: str) -> None:
        """Send no request yet.

        Raises:
            ConfigError: the site's authorities cannot be read.
        """
        self.site = site
        self.user = user
        self._at = 0
        self._http = httpx.AsyncClient(
            auth=httpx.BasicAuth(user.encode(), password.encode()),
            timeout=httpx.Timeout(_READ_S, connect=_CONNECT_S),
            verify=_authorities(site),
            # A proxy from the environment would be a third party, and a redirect could lead to one.
            trust_env=False,
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"SiteClient({self.site.name})"

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def who(self) -> WhoAmI:
        """Return the site's name and tags of this user.

        Raises:
            SiteRefuses, SiteSilent, NotUnderstood: as for `ask`.
        """
        found: WhoAmI = read_document(await self.octets("/api/whoami", _SMALL_BYTES_MAX), WhoAmI)
        return found

    async def ask(self, path: str, kind: Any, *, is_large: bool = False) -> Any:
        """Return a document; None if the site has none at this path, or does not show it to this user.

        Only one that `is_large` may have more than `_SMALL_BYTES_MAX` octets.

        Raises:
            SiteRefuses: the site refuses the request.
            SiteSilent: the site does not answer in time.
            NotUnderstood: the answer is no such document.
        """
        try:
            octets = await self.octets(path, _ANSWER_BYTES_MAX if is_large else _SMALL_BYTES_MAX)
        except SiteRefuses as refusal:
            if refusal.is_login or refusal.status not in _HAS_NOT:
                raise
            return None
        return read_document(octets, kind)

    async def octets(self, path: str, most: int) -> bytes:
        """Return the body of the answer to GET, of at most `most` octets."""
        async with self._answer("GET", path) as response:
            octets = await _bounded(response, most)
            _check(response, octets)
            return octets

    async def lines(self, method: str, path: str, body: Any) -> AsyncIterator[bytes]:
        """Yield the lines of an answer as they come; the answer may take hours.

        Raises:
            SiteRefuses, SiteSilent: as for `ask`.
        """
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        async with self._answer(method, path, json=body, timeout=timeout) as response:
            if response.status_code >= HTTPStatus.BAD_REQUEST:
                _check(response, await _bounded(response, _SMALL_BYTES_MAX))
            async for line in _lines(response):
                yield line

    async def whole(self, method: str, path: str, body: Any = None) -> bytes:
        """Return the whole body of an answer that has no time limit.

        Raises:
            SiteRefuses, SiteSilent: as for `ask`. NotUnderstood: the answer has more than `_ANSWER_BYTES_MAX` octets.
        """
        parts: list[bytes] = []
        size = 0
        async for line in self.lines(method, path, body):
            size += len(line) + 1
            if size > _ANSWER_BYTES_MAX:
                raise NotUnderstood(f"the answer has more than {_ANSWER_BYTES_MAX} octets")
            parts.append(line)
        return b"\n".join(parts)

    @asynccontextmanager
    async def _answer(self, method: str, path: str, **options: Any) -> AsyncIterator[httpx.Response]:
        """Send a request; close the answer at the end of the context, even if it was not read to its end."""
        async with AsyncExitStack() as opened:
            response = await self._asked(opened, method, path, options)
            try:
                yield response
            except httpx.HTTPError as error:
                raise SiteSilent(_why(error)) from None

    async def _asked(
        self, opened: AsyncExitStack, method: str, path: str, options: dict[str, Any]
    ) -> httpx.Response:
        """Send a request to the node that answered last, or to the next one until a node has received the request."""
        urls = self.site.urls
        for attempt in range(1, len(urls) + 1):
            stream = self._http.stream(method, urls[self._at] + path, **options)
            try:
                return await opened.enter_async_context(stream)
            except httpx.HTTPError as error:
                self._at = (self._at + 1) % len(urls)
                was_asked = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if was_asked or attempt == len(urls):
                    raise SiteSilent(_why(error)) from None
        raise AssertionError("a site has a URL")


def _authorities(site: SiteAddress) -> ssl.SSLContext | bool:
    if site.cacertfile is None:
        return any(url.startswith("https") for url in site.urls)
    try:
        return ssl.create_default_context(cafile=str(site.cacertfile))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"sites.{site.name}.cacertfile: {site.cacertfile}: {error}") from None


async def _bounded(response: httpx.Response, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > most:
            raise NotUnderstood(f"the answer has more than {most} octets")
        parts.append(part)
    return b"".join(parts)


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    # The begin of a line that has not ended. It is joined once: a message of 16 MB comes in hundreds of parts.
    waiting: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        first, *others = part.split(b"\n")
        waiting.append(first)
        size += len(first)
        if others:
            yield b"".join(waiting)
            for line in others[:-1]:
                yield line
            waiting, size = [others[-1]], len(others[-1])
        if size > _LINE_BYTES_MAX:
            raise NotUnderstood(f"a line of the answer has more than {_LINE_BYTES_MAX} octets")
    if size:
        yield b"".join(waiting)


def _check(response: httpx.Response, octets: bytes) -> None:
    if response.is_success:
        return
    if response.status_code in (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT):
        raise SiteSilent(f"a proxy before the site answers {response.status_code}")
    is_login = response.status_code == HTTPStatus.UNAUTHORIZED and "www-authenticate" in response.headers
    raise SiteRefuses(response.status_code, _reason(response, octets), is_login=is_login)


def _reason(response: httpx.Response, octets: bytes) -> str:
    """Return the site's own reason if the body has RabbitMQ's form, else the status."""
    try:
        document = read_document(octets, dict[str, Any])
        reason = str(document.get("reason") or document.get("error") or "")
    except NotUnderstood:
        reason = ""
    return reason[:_REASON_CHARACTERS_MAX] or f"the site answers {response.status_code}"


def _why(error: httpx.HTTPError) -> str:
    """Return the reason for a missing answer; httpx's texts contain no URLs, and some errors have no text."""
    match error:
        case httpx.ConnectTimeout():
            return f"no connection within {_CONNECT_S:.0f} s"
        case httpx.ReadTimeout():
            return f"no answer within {_READ_S:.0f} s"
        case httpx.ConnectError():
            return f"no connection: {error}"
        case _:
            return f"the connection broke: {str(error) or type(error).__name__}"
