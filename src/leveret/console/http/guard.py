"""The guard before the application: checks the host and the origin of each request, and adds security headers.

A page of another origin can make a browser send requests here with a cookie. So a request with a side effect must have
an `Origin` of this console, which no page can forge, and a body of JSON, which no form can send. An attacker's page may
use a name that resolves to this machine; the check of `Host` refuses such names.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leveret.model.addresses import is_address
from leveret.model.whole_number import whole_number

BODY_BYTES_MAX: Final = 64 * 1024
_SAFE: Final = ("GET", "HEAD")
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""No inline script or style, no eval, no resource of another origin; and no text can become markup or a script."""
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


class Guard:
    """See the module; `hosts` are the names that `Host` may have, beside addresses."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], *, has_tls: bool) -> None:
        """Guard `app`."""
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._scheme = "https" if has_tls else "http"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request to the application, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal:
            answer = JSONResponse({"error": refusal}, HTTPStatus.FORBIDDEN)
            await answer(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _refusal(self, method: str, headers: Headers) -> str:
        """Return the reason for a refusal; empty if the request may pass."""
        host = headers.get("host", "")
        if not self._is_known(host):
            return "this console is not reached by that name: set `names` in console.toml, or management.console.names"
        if method in _SAFE:
            return ""
        if headers.get("origin") != f"{self._scheme}://{host}":
            return "the request does not come from a page of this console"
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return "the request carries no JSON"
        length = headers.get("content-length", "")
        if whole_number(length, most=BODY_BYTES_MAX) is None:
            return f"the request must say how long it is, up to {BODY_BYTES_MAX} octets"
        return ""

    def _is_known(self, host: str) -> bool:
        """Return whether `host` is an address or one of the names."""
        name, _, port = host.rpartition(":")
        name = name if port.isdigit() else host
        name = name.removeprefix("[").removesuffix("]").lower()
        return name in self._hosts or is_address(name)
