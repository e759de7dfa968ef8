"""What people and programs write: HTTP requests, configuration files, definitions, command lines."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import httpx
import msgspec
from starlette.applications import Starlette

from leveret.cli import ctl
from leveret.cli.api import Api, CtlError
from leveret.cli.families import FAMILIES
from leveret.cli.program import run
from leveret.config.settings import check_known
from leveret.config.sources import build, render
from leveret.config.syntax import parse_lines
from leveret.config.tree import SETTINGS
from leveret.core.broker import Broker
from leveret.management.app import build_app, operator_door
from leveret.management.rates_ticker import rates_of
from leveret.model.definitions import Put, Vhost, decode_change, encode_change
from leveret.model.errors import ConfigError, Refusal
from leveret.runtime.boot_definitions import Document, _put_all
from tests.fuzz.target import Target, declared, expect
from tests.unit.management.conftest import FakeNode

# --- configuration ------------------------------------------------------------------------------


def configuration(octets: bytes) -> None:
    """A file that is taken is taken again as `--print-config` shows it, and means the same."""
    with declared(ConfigError, UnicodeDecodeError):
        given = parse_lines(octets.decode(), "file", _no_file)
        check_known(given, SETTINGS)
        config = build(given)
        if not any(one.is_secret and one.takes(key) for one in SETTINGS for key in given):
            expect(build(parse_lines(render(given), "shown", _no_file)) == config, "it is shown as another")


def _no_file(path: str) -> str:
    raise ConfigError(f"{path}: cannot be read")


def configuration_seeds() -> Iterator[bytes]:
    lines = render({}).splitlines()
    yield "\n".join(line.partition(" # ")[0].rstrip() for line in lines if "= " in line)[:4000].encode()
    yield from (line.partition(" # ")[0].encode() for line in lines if not line.startswith("#"))
    yield b"a.b = 'in # quotes' # and a comment\r\nc\\.d = $(<file)\nlisteners.tcp.1 = 127.0.0.1:5672\n"


# --- definitions --------------------------------------------------------------------------------

DEFINITIONS: Final[dict[str, Any]] = {
    "users": [{"name": "u", "password_hash": "", "hashing_algorithm": "", "tags": ["administrator"]}],
    "vhosts": [{"name": "/", "metadata": {"description": "", "tags": [], "default_queue_type": "quorum"}}],
    "permissions": [{"user": "u", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
    "topic_permissions": [{"user": "u", "vhost": "/", "exchange": "amq.topic", "write": "a", "read": "b"}],
    "parameters": [{"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 9}}],
    "global_parameters": [{"name": "cluster_name", "value": "c"}],
    "policies": [
        {"vhost": "/", "name": "p", "pattern": "^q", "apply-to": "queues", "definition": {"max-length": 5}}
    ],
    "exchanges": [{"name": "e", "vhost": "/", "type": "topic", "arguments": {"alternate-exchange": "x"}}],
    "queues": [{"name": "q", "vhost": "/", "durable": True, "arguments": {"x-max-length": 1}}],
    "bindings": [
        {
            "source": "e",
            "vhost": "/",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "a.#",
            "arguments": {},
        }
    ],
}


def definitions(octets: bytes) -> None:
    """A definitions file at a start; what it puts is written to the log and read back the same."""
    broker = Broker(lambda queue, offset: [])
    with declared(ConfigError):
        _put_all(Document(Path("definitions.json"), octets), broker)
    for change in broker.changes:
        stored = encode_change(change)
        expect(encode_change(decode_change(stored)) == stored, f"{change} is another one after a restart")


def definitions_seeds() -> Iterator[bytes]:
    yield msgspec.json.encode(DEFINITIONS)
    for kind, entities in DEFINITIONS.items():
        yield msgspec.json.encode({"vhosts": DEFINITIONS["vhosts"], kind: entities})


def changes(octets: bytes) -> None:
    """A record of the definitions log."""
    with declared(msgspec.DecodeError, UnicodeDecodeError):
        change = decode_change(octets)
        expect(decode_change(encode_change(change)) == change, "a change is not what it was")


def change_seeds() -> Iterator[bytes]:
    yield b'{"delete":"queues","key":["/","q"]}'
    for kind, (entity, *_) in DEFINITIONS.items():
        yield msgspec.json.encode({"put": kind, "value": entity})


# --- HTTP ---------------------------------------------------------------------------------------

BODIES: Final = {
    "queues": {"durable": True, "arguments": {"x-queue-type": "classic"}},
    "exchanges": {"type": "topic", "arguments": {}},
    "publish": {"properties": {"headers": {"a": 1}}, "routing_key": "q", "payload": "eA==", "payload_encoding": "base64"},
    "get": {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 10},
    "policies": DEFINITIONS["policies"][0],
    "operator-policies": DEFINITIONS["policies"][0],
    "parameters": {"value": {"max-queues": 1}},
    "users": {"password": "p", "tags": "monitoring", "limits": {"max-channels": 1}},
    "permissions": {"configure": "", "write": ".*", "read": "^a"},
    "topic-permissions": {"exchange": "amq.topic", "write": "a", "read": "b"},
    "definitions": DEFINITIONS,
    "bindings": {"routing_key": "k", "arguments": {"a": 1}},
    "vhosts": {"description": "d", "tags": "a,b", "default_queue_type": "quorum"},
    "bulk-delete": {"users": ["u"]},
}
QUERY: Final = "?page=1&page_size=2&name=a&use_regex=true&sort=name&sort_reverse=true&columns=name,vhost.a"
PLACES: Final = {"vhost": "%2F", "name": "q", "exchange": "amq.topic", "queue": "q", "user": "guest"}


class _Log(logging.Handler):
    """Keeps the bug behind a 500."""

    def __init__(self) -> None:
        super().__init__()
        self.bug: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.bug = record.exc_info[1]


@cache
def _served() -> tuple[Starlette, asyncio.Runner, _Log]:
    log = _Log()
    logger = logging.getLogger("leveret.management")
    logger.handlers, logger.propagate = [log], False
    return build_app(_node()), asyncio.Runner(), log


def _node() -> FakeNode:
    node = FakeNode(Path("nowhere"))
    node.broker.apply(Put(Vhost(name="/")))
    node.broker.changes.clear()
    return node


def http(octets: bytes) -> None:
    """`METHOD target`, an empty line, the body: whatever they are, the answer is no 5xx but a deliberate one."""
    head, _, body = octets.partition(b"\n\n")
    method, _, target = head.partition(b" ")
    app, runner, log = _served()
    app.state.node = node = _node()
    app.state.rates = rates_of(node)
    app.state.imports = asyncio.Lock()
    log.bug = None
    status = runner.run(_ask(app, method.decode("latin-1"), target, body))
    if log.bug is not None:
        raise log.bug
    expect(200 <= status < 600, f"status {status}")
    expect(status != 500, "status 500")


async def _ask(app: Starlette, method: str, target: bytes, body: bytes) -> int:
    raw_path, _, query = target.partition(b"?")
    scope = {
        "type": "http",
        "method": method,
        "path": raw_path.decode("latin-1"),
        "raw_path": raw_path,
        "root_path": "",
        "query_string": query,
        "headers": [(b"host", b"node"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 5),
        "server": ("node", 80),
        "scheme": "http",
    }
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await operator_door(app)(scope, receive, send)
    return statuses[0]


def http_seeds() -> Iterator[bytes]:
    app, *_ = _served()
    for route in app.routes:
        path: str = getattr(route, "path", "")
        for place in (part.strip("{}") for part in path.split("/") if part.startswith("{")):
            path = path.replace("{" + place + "}", PLACES.get(place.partition(":")[0], "q"))
        yield f"GET {path}{QUERY}\n\n".encode()
        body = next((value for word, value in BODIES.items() if word in path.split("/")), {})
        for method in ("PUT", "POST", "DELETE"):
            yield f"{method} {path}\n\n".encode() + msgspec.json.encode(body)


# --- command lines ------------------------------------------------------------------------------

LOCAL: Final = frozenset({"lifecycle", "logging", "helping", "health", "standby_replication", "schema_replication"})
"""Families that act on this machine, or wait: not for words that nobody chose."""
COMMANDS: Final = sorted(
    name for family, (_, names) in FAMILIES.items() if family not in LOCAL for name in names
)


def command_line(octets: bytes) -> None:
    """A command (by number) and its words, one a line, against a node that answers as the real one would."""
    if not octets:
        return
    words = octets[1:].decode("utf-8", "replace").replace("\0", "").split("\n")
    arguments = ctl.common_options_first([COMMANDS[octets[0] % len(COMMANDS)], *words])
    output, errors = io.StringIO(), io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(patch.object(ctl, "connect", _in_memory))
        stack.enter_context(patch("sys.stdin", io.TextIOWrapper(io.BytesIO(octets))))
        stack.enter_context(redirect_stdout(output))
        stack.enter_context(redirect_stderr(errors))
        wanted = ctl.wanted_command(arguments)
        if wanted not in COMMANDS:
            return
        try:
            status = run(_ctl_app(wanted), "leveretctl", ctl._describe, arguments)
        except SystemExit as end:
            status = int(end.code or 0)
    expect((status == 0) == (not errors.getvalue()), f"status {status}, and on stderr: {errors.getvalue()!r}")
    expect(errors.getvalue().count("\n") <= 1, f"more than one line: {errors.getvalue()!r}")


@cache
def _ctl_app(wanted: str) -> Any:
    return ctl.build_app(wanted)


@contextmanager
def _in_memory(data_dir: Path | None, url: str | None, timeout_s: float | None) -> Iterator[Api]:
    app, runner, log = _served()
    app.state.node = node = _node()
    app.state.rates = rates_of(node)
    app.state.imports = asyncio.Lock()
    log.bug = None
    with httpx.Client(transport=_Transport(app, runner), base_url="http://node") as client:
        yield Api(client, "the node", timeout_s)
    if log.bug is not None:
        raise log.bug
