"""One site's HTTP API, as one user. Answers are bounded in size and time.

A site may have several nodes that know the same, as a cluster has. One of them is asked, and another one from when it
cannot be reached.
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
_LINE_BYTES_MAX: Final = 32 * 1024 * 1024
"""A message of 16 MB in base64."""
_REASON_CHARACTERS_MAX: Final = 500
_HAS_NOT: Final = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
)
"""RabbitMQ answers 401 also to a user that it knows and that lacks a tag, then without a challenge."""


class SiteSilent(LeveretError):
    """The site does not answer, or not whole, or not in time."""


class SiteRefuses(LeveretError):
    """The site answered, and declines; `is_login` if it does not know the user or the password."""

    def __init__(self, status: int, reason: str, *, is_login: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.is_login = is_login


class SiteClient:
    """See the module. The password is in memory only, and in no text that this object gives."""

    def __init__(self, site: SiteAddress, user: str, password: str) -> None:
        """Ask nothing yet.

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
            # Proxies of the environment would be a third party, and redirects could lead to one.
            trust_env=False,
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"SiteClient({self.site.name})"

    async def close(self) -> None:
        """Ask no more."""
        await self._http.aclose()

    async def who(self) -> WhoAmI:
        """Who the site says that this user is.

        Raises:
            SiteRefuses, SiteSilent, NotUnderstood: as for `ask`.
        """
        found: WhoAmI = read_document(await self.octets("/api/whoami"), WhoAmI)
        return found

    async def ask(self, path: str, kind: Any) -> Any:
        """A document; None if the site has none at this path, or not for this user.

        Raises:
            SiteRefuses: the site declines.
            SiteSilent: nothing came, or not in time.
            NotUnderstood: what came is no such document.
        """
        try:
            octets = await self.octets(path)
        except SiteRefuses as refusal:
            if refusal.is_login or refusal.status not in _HAS_NOT:
                raise
            return None
        return read_document(octets, kind)

    async def octets(self, path: str) -> bytes:
        """What the site answers to GET."""
        async with self._answer("GET", path) as response:
            octets = await _bounded(response)
            _check(response, octets)
            return octets

    async def lines(self, method: str, path: str, body: Any) -> AsyncIterator[bytes]:
        """The lines of an answer that comes little by little, for hours if need be.

        Raises:
            SiteRefuses, SiteSilent: as for `ask`.
        """
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        async with self._answer(method, path, json=body, timeout=timeout) as response:
            if response.status_code >= HTTPStatus.BAD_REQUEST:
                _check(response, await _bounded(response))
            async for line in _lines(response):
                yield line

    async def whole(self, method: str, path: str, body: Any = None) -> bytes:
        """An answer for which a site may take its time, in one piece.

        Raises:
            SiteRefuses, SiteSilent: as for `ask`. NotUnderstood: it is larger than any document of a site.
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
        """Ask, and end the answer however it was read."""
        async with AsyncExitStack() as opened:
            response = await self._asked(opened, method, path, options)
            try:
                yield response
            except httpx.HTTPError as error:
                raise SiteSilent(_why(error)) from None

    async def _asked(
        self, opened: AsyncExitStack, method: str, path: str, options: dict[str, Any]
    ) -> httpx.Response:
        """Ask the node that answered last, or else the next one: as long as none got the question."""
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


async def _bounded(response: httpx.Response) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > _ANSWER_BYTES_MAX:
            raise NotUnderstood(f"the answer has more than {_ANSWER_BYTES_MAX} octets")
        parts.append(part)
    return b"".join(parts)


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    waiting = b""
    async for part in response.aiter_bytes():
        *whole, waiting = (waiting + part).split(b"\n")
        for line in whole:
            yield line
        if len(waiting) > _LINE_BYTES_MAX:
            raise NotUnderstood(f"a line of the answer has more than {_LINE_BYTES_MAX} octets")
    if waiting:
        yield waiting


def _check(response: httpx.Response, octets: bytes) -> None:
    if response.is_success:
        return
    if response.status_code in (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT):
        raise SiteSilent(f"a proxy before the site answers {response.status_code}")
    is_login = response.status_code == HTTPStatus.UNAUTHORIZED and "www-authenticate" in response.headers
    raise SiteRefuses(response.status_code, _reason(response, octets), is_login=is_login)


def _reason(response: httpx.Response, octets: bytes) -> str:
    """The reason in the site's words, if it is in the form of RabbitMQ's."""
    try:
        document = read_document(octets, dict[str, Any])
        reason = str(document.get("reason") or document.get("error") or "")
    except NotUnderstood:
        reason = ""
    return reason[:_REASON_CHARACTERS_MAX] or f"the site answers {response.status_code}"


def _why(error: httpx.HTTPError) -> str:
    """Why nothing came; the errors of httpx have texts without URLs, but some have none at all."""
    match error:
        case httpx.ConnectTimeout():
            return f"no connection within {_CONNECT_S:.0f} s"
        case httpx.ReadTimeout():
            return f"no answer within {_READ_S:.0f} s"
        case httpx.ConnectError():
            return f"no connection: {error}"
        case _:
            return f"the connection broke: {str(error) or type(error).__name__}"
