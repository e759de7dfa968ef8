"""Large answers that clients do not read: what they hold together, and which further ones are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from leveret.management.request import large_answers
from leveret.management.request.auth import OPERATOR_SCOPE
from leveret.management.request.large_answers import PART_BYTES, LargeAnswers, answer_to, hold_body
from leveret.management.request.replies import BadRequest

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tests.unit.management.conftest import Client, FakeNode

BOUND = 4 * PART_BYTES


@pytest.fixture(autouse=True)
def _bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_answers, "HELD_BYTES_MAX", BOUND)


def asked(method: str = "GET", *, is_operator: bool = False) -> Scope:
    return {"type": "http", "method": method, "headers": [], OPERATOR_SCOPE: is_operator}


class Reader:
    """A client that reads only once it `may_read`."""

    def __init__(self, *, reads: bool = True) -> None:
        self.may_read = asyncio.Event()
        if reads:
            self.may_read.set()
        self.parts: list[int] = []
        self.status = 0

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.parts.append(len(message["body"]))
        await self.may_read.wait()


async def receive() -> Message:
    return {"type": "http.disconnect"}


@asynccontextmanager
async def unread(answers: LargeAnswers, *scopes: Scope) -> AsyncIterator[list[Reader]]:
    """Clients that ask and do not read."""
    readers = [Reader(reads=False) for _ in scopes]
    tasks = [
        asyncio.create_task(answers(scope, receive, reader.take))
        for scope, reader in zip(scopes, readers, strict=True)
    ]
    await asyncio.sleep(0)
    yield readers
    for reader in readers:
        reader.may_read.set()
    await asyncio.gather(*tasks)


def answering(size: int) -> LargeAnswers:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"x" * size)(scope, receive, send)

    return LargeAnswers(app)


@pytest.mark.parametrize(
    ("scope", "size", "status"),
    [
        (asked(), 2 * PART_BYTES, 503),
        (asked("HEAD"), 2 * PART_BYTES, 503),
        (asked(), PART_BYTES, 200),
        (asked("POST"), 2 * PART_BYTES, 200),
        (asked(is_operator=True), 2 * PART_BYTES, 200),
    ],
    ids=["large", "its head", "small", "of a change that was made", "the operator's"],
)
async def test_what_is_answered_while_others_read_nothing(scope: Scope, size: int, status: int) -> None:
    answers = answering(size)
    reader = Reader()
    async with unread(answers, *[asked("POST")] * (BOUND // size)) as waiting:
        assert answers.held == BOUND
        await answers(scope, receive, reader.take)
        assert reader.status == status
        assert {each.status for each in waiting} == {200}
        assert answers.held == BOUND
    assert answers.held == 0
    again = Reader()
    await answers(asked(), receive, again.take)
    assert (again.status, sum(again.parts)) == (200, size)


async def test_a_body_goes_in_parts_and_the_next_waits_for_the_client() -> None:
    answers = answering(2 * PART_BYTES + 5)
    async with unread(answers, asked()) as [reader]:
        assert reader.parts == [PART_BYTES]
    assert reader.parts == [PART_BYTES, PART_BYTES, 5]


@pytest.mark.parametrize(
    ("scope", "octets", "fits"),
    [
        (asked("POST"), PART_BYTES + 1, False),
        (asked("POST"), PART_BYTES, True),
        (asked("POST", is_operator=True), PART_BYTES + 1, True),
    ],
    ids=["large", "small", "the operator's"],
)
async def test_bodies_that_arrive_slowly_hold_only_so_much_together(
    scope: Scope, octets: int, fits: bool
) -> None:
    """Twenty bodies of 20 MB each took 400 MB, for as long as their client chose."""
    arriving = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        hold_body(Request(scope), scope["octets"])
        await arriving.wait()

    bodies = LargeAnswers(app)

    def request(scope: Scope, octets: int) -> asyncio.Task[None]:
        return asyncio.create_task(bodies({**scope, "octets": octets}, receive, Reader().take))

    others = [request(asked("POST"), BOUND // 2) for _ in range(2)]
    await asyncio.sleep(0)
    assert bodies.held == BOUND
    one = request(scope, octets)
    await asyncio.sleep(0)
    assert one.done() is not fits
    arriving.set()
    [found, *_] = await asyncio.gather(one, *others, return_exceptions=True)
    assert isinstance(found, BadRequest) is not fits
    assert bodies.held == 0


async def test_a_failed_answer_holds_nothing() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        answer_to(Request(scope)).add(7)
        raise KeyError

    answers = LargeAnswers(app)
    with pytest.raises(KeyError):
        await answers(asked(), receive, Reader().take)
    assert answers.held == 0


def wish(**fields: Any) -> dict[str, Any]:
    return {"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"} | fields


def test_messages_that_have_no_room_in_an_answer_stay_in_the_queue(admin: Client) -> None:
    admin.put("/api/queues/%2F/q")
    body = {"routing_key": "q", "properties": {}, "payload": "x" * PART_BYTES, "payload_encoding": "string"}
    for _ in range(6):
        admin.post("/api/exchanges/%2F/amq.default/publish", **body)
    found = [len(admin.post("/api/queues/%2F/q/get", **wish()).json()) for _ in range(3)]
    assert found == [4, 2, 0]


async def test_a_get_without_room_takes_no_message(app: Starlette, node: FakeNode, admin: Client) -> None:
    """Its messages would be settled, and in no answer."""

    def get() -> httpx.Response:
        return admin.post("/api/queues/%2F/q/get", **wish())

    def prepared() -> None:
        admin.put("/api/queues/%2F/q")
        body = {"routing_key": "q", "properties": {}, "payload": "hi", "payload_encoding": "string"}
        admin.post("/api/exchanges/%2F/amq.default/publish", **body)

    await asyncio.to_thread(prepared)
    stack = app.middleware_stack
    held = next(each for each in _stack(stack) if isinstance(each, LargeAnswers))
    held.held = BOUND
    refused = await asyncio.to_thread(get)
    assert (refused.status_code, refused.json()["error"]) == (503, "unavailable")
    held.held = 0
    assert [each["payload"] for each in (await asyncio.to_thread(get)).json()] == ["hi"]


def _stack(app: Any) -> list[Any]:
    found = []
    while app is not None:
        found.append(app)
        app = getattr(app, "app", None) or getattr(app, "_app", None)
    return found
