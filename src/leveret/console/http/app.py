"""The console's application.

GET    /, /files/NAME            the page, its scripts and styles, which ship with the package
GET    /session                  {"user": ..., "sites": [...]}; 401 without a session
POST   /session                  {"user": ..., "password": ...}: log in; answers as GET
POST   /session/sites/SITE       log in at one site, which does not know the user
DELETE /session                  log out
GET    /view/NAME                the document for a page; see `views`; `wait` first waits for all sites, but not long
GET    /jobs, POST /jobs         the offered actions and the jobs; begin a job
GET    /history                  the time line of all sites
GET    /moments?site=SITE        the moments that a recovery as of a time can use
POST   /messages                 messages of a queue, archived or divergent ones
GET    /divergent?site=SITE      divergent messages as a file, `&report=ID` those of one report
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from leveret.console.http.guard import Guard
from leveret.console.http.sessions import ConsoleSession, LoginFailed, Sessions
from leveret.console.http.site_queries import MessagesQuery, export_divergent, history, messages, moments
from leveret.console.http.static_files import ConsoleFiles
from leveret.console.http.throttle import LoginThrottle
from leveret.console.http.views import VIEWS, show_actions
from leveret.console.jobs.actions import BY_NAME, may_act
from leveret.console.settings import ConsoleSettings
from leveret.model.addresses import is_loopback
from leveret.model.errors import LeveretError
from leveret.model.foreign_json import decode_json

_END_OLD_S: Final = 60.0
Handler: TypeAlias = Callable[[Request, ConsoleSession], Coroutine[Any, Any, Response]]


class Credentials(msgspec.Struct):
    """The body of a log-in."""

    user: str
    password: str

    def __repr__(self) -> str:
        return "Credentials(...)"


class JobBody(msgspec.Struct):
    """The body that begins a job; `word` is the typed confirmation."""

    site: str
    action: str
    given: dict[str, bool | str] = {}
    word: str = ""

    def __repr__(self) -> str:
        return "JobBody(...)"


def build_console(settings: ConsoleSettings, port: int) -> ASGIApp:
    """Return the application of a console that listens on `port`, behind its guard."""
    sessions = Sessions(settings)
    app = Starlette(routes=ROUTES, lifespan=_lifespan)
    app.state.sessions = sessions
    app.state.throttle = LoginThrottle()
    app.state.files = ConsoleFiles()
    app.state.has_tls = settings.has_tls
    # Browsers store cookies by host, not by port; two consoles of a machine must not overwrite each other's.
    app.state.cookie = f"{'__Host-' if settings.has_tls else ''}leveret-console-{port}"
    local = ("localhost",) if is_loopback(settings.host) else ()
    return Guard(app, (*settings.names, *local), has_tls=settings.has_tls)


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    sessions: Sessions = app.state.sessions
    ending = asyncio.create_task(_end_old(sessions), name="end old sessions")
    try:
        yield
    finally:
        ending.cancel()
        await sessions.close()


async def _end_old(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(_END_OLD_S)
        await sessions.end_old()


def logged_in(handler: Handler) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Call a handler with the session of the request; answer 401 without a session, and errors by their kind."""

    @wraps(handler)
    async def checked(request: Request) -> Response:
        session = request.app.state.sessions.of(request.cookies.get(request.app.state.cookie))
        if session is None:
            return answer({"error": "log in first"}, HTTPStatus.UNAUTHORIZED)
        try:
            return await handler(request, session)
        except TimeoutError:
            return answer({"error": "the site does not answer in time"}, HTTPStatus.GATEWAY_TIMEOUT)
        except LeveretError as error:
            return _refusal(error)

    return checked


def _refusal(error: LeveretError) -> Response:
    status = HTTPStatus.BAD_REQUEST
    if isinstance(error, LoginFailed):
        status = HTTPStatus.FORBIDDEN if error.is_refused else HTTPStatus.SERVICE_UNAVAILABLE
    return answer({"error": str(error)}, status)


def answer(document: Any, status: int = HTTPStatus.OK) -> Response:
    """Return a JSON answer."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")


async def read_body(request: Request, kind: Any) -> Any:
    """Decode the JSON body of a request.

    Raises:
        LeveretError: the body is malformed, or has another shape.
    """
    try:
        return decode_json(await request.body(), kind)
    except msgspec.DecodeError:
        # The text of the error is left out, because it may quote the body.
        raise LeveretError("the body of the request is malformed") from None


async def show_page(request: Request) -> Response:
    """Answer with the only page."""
    return request.app.state.files.answer("index.html") or Response(status_code=HTTPStatus.NOT_FOUND)


async def show_file(request: Request) -> Response:
    """Answer with a script, a style or a picture."""
    found: Response | None = request.app.state.files.answer(request.path_params["name"])
    return found or Response(status_code=HTTPStatus.NOT_FOUND)


async def log_in(request: Request) -> Response:
    """Begin a session."""
    state = request.app.state
    address = request.client.host if request.client else ""
    try:
        given = await read_body(request, Credentials)
        if refused := _throttled(request, address):
            return refused
        token = await state.sessions.log_in(given.user, given.password)
    except LeveretError as error:
        if isinstance(error, LoginFailed) and not error.is_refused:
            state.throttle.forgive(address)
        return _refusal(error)
    state.throttle.succeeded(address)
    await state.sessions.log_out(request.cookies.get(state.cookie))
    response = answer(_described(state.sessions.of(token)))
    response.set_cookie(state.cookie, token, path="/", secure=state.has_tls, httponly=True, samesite="strict")
    return response


def _throttled(request: Request, address: str) -> Response | None:
    """Count an attempt to log in; return the answer to one too many.

    It counts before the sites answer, and once its body is here: many attempts at the same time are as many.
    """
    throttle: LoginThrottle = request.app.state.throttle
    if wait_s := throttle.wait_s(address, time.monotonic()):
        text = f"too many failed attempts: try again in {wait_s:.0f} s"
        return answer({"error": text}, HTTPStatus.TOO_MANY_REQUESTS)
    throttle.began(address, time.monotonic())
    return None


async def log_out(request: Request) -> Response:
    """End a session."""
    state = request.app.state
    await state.sessions.log_out(request.cookies.get(state.cookie))
    response = answer({})
    response.delete_cookie(state.cookie, path="/", secure=state.has_tls, httponly=True, samesite="strict")
    return response


async def show_session(request: Request) -> Response:
    """Answer with the session's user, and the user at each site; user None without a session."""
    state = request.app.state
    session: ConsoleSession | None = state.sessions.of(request.cookies.get(state.cookie))
    return answer(_described(session))


def _described(session: ConsoleSession | None) -> dict[str, Any]:
    if session is None:
        return {"user": None, "sites": []}
    sites = [{"site": each.site, "user": each.user, "tags": each.tags} for each in session.facts]
    return {"user": session.user, "sites": sites}


@logged_in
async def log_in_at(request: Request, session: ConsoleSession) -> Response:
    """Log in at one site as another user."""
    state = request.app.state
    address = request.client.host if request.client else ""
    given = await read_body(request, Credentials)
    if refused := _throttled(request, address):
        return refused
    try:
        await state.sessions.log_in_at(session, request.path_params["site"], given.user, given.password)
    except LoginFailed as failure:
        if not failure.is_refused:
            state.throttle.forgive(address)
        raise
    state.throttle.forgive(address)
    return answer({})


@logged_in
async def show_view(request: Request, session: ConsoleSession) -> Response:
    """Answer with the document for a page."""
    view = VIEWS.get(request.path_params["name"])
    if view is None:
        return answer({"error": "there is no such page"}, HTTPStatus.NOT_FOUND)
    if "wait" in request.query_params:
        await session.wait_read()
    return answer(view(session, request.query_params) | {"is_reading": session.is_reading})


@logged_in
async def show_jobs(request: Request, session: ConsoleSession) -> Response:
    """Answer with the actions that this user may request, and the jobs at the sites that this user may monitor."""
    return answer(show_actions(session, request.app.state.sessions.jobs))


@logged_in
async def begin_job(request: Request, session: ConsoleSession) -> Response:
    """Begin an action at a site; the site decides whether the user may request it."""
    wanted: JobBody = await read_body(request, JobBody)
    watch, action = session.watches.get(wanted.site), BY_NAME.get(wanted.action)
    if watch is None or action is None or not may_act(watch.facts):
        raise LeveretError("this user may not have this site do that")
    job = request.app.state.sessions.jobs.begin(action, watch, wanted.given, wanted.word)
    return answer({"number": job.number}, HTTPStatus.ACCEPTED)


@logged_in
async def show_history(_request: Request, session: ConsoleSession) -> Response:
    """Answer with the time line."""
    return answer(await history(session))


@logged_in
async def show_messages(request: Request, session: ConsoleSession) -> Response:
    """Answer with messages of a queue, or divergent ones."""
    return answer(await messages(session, await read_body(request, MessagesQuery)))


@logged_in
async def show_moments(request: Request, session: ConsoleSession) -> Response:
    """Answer with the moments of a standby's stored history."""
    return answer(await moments(session, request.query_params.get("site", "")))


@logged_in
async def download_divergent(request: Request, session: ConsoleSession) -> Response:
    """Answer with divergent messages as a file."""
    site = request.query_params.get("site", "")
    lines = await export_divergent(session, site, request.query_params.get("report", ""))
    name = f"divergent-{site}.ndjson"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)


ROUTES: Final = [
    Route("/", show_page),
    Route("/files/{name}", show_file),
    Route("/session", show_session, methods=["GET"]),
    Route("/session", log_in, methods=["POST"]),
    Route("/session", log_out, methods=["DELETE"]),
    Route("/session/sites/{site}", log_in_at, methods=["POST"]),
    Route("/view/{name}", show_view),
    Route("/history", show_history),
    Route("/moments", show_moments),
    Route("/messages", show_messages, methods=["POST"]),
    Route("/divergent", download_divergent),
    Route("/jobs", show_jobs, methods=["GET"]),
    Route("/jobs", begin_job, methods=["POST"]),
]
