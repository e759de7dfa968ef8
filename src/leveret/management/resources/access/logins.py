"""`/api/auth`, `/api/login`: the methods of login; `/api/auth/attempts`: the counts of logins."""

from __future__ import annotations

import base64
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.management.request.auth import Requirement, Unauthorised, log_in
from leveret.management.request.call import Call, resource
from leveret.management.request.places import at_node, need_this_node
from leveret.management.request.replies import READS, done, json_reply

_FORM_BYTES_MAX: Final = 65_536


async def show_method(request: Request) -> Response:
    """Whether OAuth is in use: always no. Open to all, because a login page asks for it first."""
    return json_reply(
        {
            "enable_uaa": False,
            "oauth_enabled": False,
            "uaa_client_id": "",
            "uaa_location": "",
        }
    )


async def answer_login(request: Request) -> Response:
    """Begin a page's session with a form's `username` and `password`, or end it; the node stores no sessions.

    The answer is that of RabbitMQ 4.3: the authorization that the page sends from now on.
    """
    if request.method == "DELETE":
        return done()
    octets = b""
    async for piece in request.stream():
        octets += piece
        if len(octets) > _FORM_BYTES_MAX:
            return Response(status_code=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    form = parse_qs(octets.decode("utf-8", "replace"))
    name, password = (form.get(field, [""])[0] for field in ("username", "password"))
    try:
        caller = log_in(request.app.state.node, request, name, password)
        caller.require(Requirement.MANAGEMENT)
    except Unauthorised as refused:
        # The page has a form of its own: its browser must not ask for a password as well.
        if "www-authenticate" in refused.reply.headers:
            del refused.reply.headers["www-authenticate"]
        return refused.reply
    token = {"type": "basic", "value": base64.b64encode(f"{name}:{password}".encode()).decode()}
    return json_reply({"token": token, "user": {"name": caller.name, "tags": caller.tags}})


async def show_attempts(call: Call) -> Response:
    """Logins by protocol since the counts began."""
    need_this_node(call, "node")
    rows = [
        {
            "protocol": protocol,
            "auth_attempts": attempts.total,
            "auth_attempts_failed": attempts.failed,
            "auth_attempts_succeeded": attempts.succeeded,
        }
        for protocol, attempts in call.broker.logins.by_protocol.items()
    ]
    return await call.plain_list(rows, "protocol")


async def show_sources(call: Call) -> Response:
    """Logins by address and user: not counted, as in RabbitMQ by default."""
    need_this_node(call, "node")
    return json_reply([])


async def forget_attempts(call: Call) -> Response:
    """Begin to count anew."""
    need_this_node(call, "node")
    call.broker.logins.forget()
    return done()


ROUTES = [
    Route("/api/auth", show_method, methods=READS),
    Route("/api/login", answer_login, methods=["POST", "DELETE"]),
    resource(
        "/api/auth/attempts/{node}",
        need=Requirement.MONITORING,
        on_followers=True,
        defines=False,
        place=at_node("node"),
        GET=show_attempts,
        DELETE=forget_attempts,
    ),
    resource(
        "/api/auth/attempts/{node}/source",
        need=Requirement.MONITORING,
        on_followers=True,
        defines=False,
        place=at_node("node"),
        GET=show_sources,
        DELETE=forget_attempts,
    ),
]
