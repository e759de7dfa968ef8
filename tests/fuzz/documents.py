"""What people and programs write: HTTP requests, configuration files, definitions, command lines."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
import shlex
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import httpx
import msgspec
from starlette.applications import Starlette

from leveret.cli import ctl
from leveret.cli.api import Api
from leveret.cli.families import FAMILIES
from leveret.cli.program import run
from leveret.config.settings import check_known
from leveret.config.sources import build, render
from leveret.config.syntax import parse_lines
from leveret.config.tree import SETTINGS
from leveret.core.broker.broker import Broker
from leveret.management.http.app import build_app, operator_app, public_app
from leveret.management.http.rates_ticker import SampledRates
from leveret.model.definitions import Put, Queue, Vhost, decode_change, encode_change
from leveret.model.errors import ConfigError
from leveret.runtime.definitions.boot import Document, _put_all
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
    "publish": {
        "properties": {"headers": {"a": 1}},
        "routing_key": "q",
        "payload": "eA==",
        "payload_encoding": "base64",
    },
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
    logging.getLogger("leveret.management").addHandler(log)
    return build_app(_node()), asyncio.Runner(), log


def _node() -> FakeNode:
    node = FakeNode(Path("nowhere"))
    node.broker.apply(Put(Vhost(name="/")))
    node.add_user("guest", "administrator", vhost="/")
    node.broker.apply(Put(Queue(vhost="/", name="q")))
    node.broker.changes.clear()
    return node


@contextmanager
def _fresh_node() -> Iterator[Callable[[httpx.Request], httpx.Response]]:
    """A node's API for this input alone; a bug in a handler is raised at the end."""
    app, runner, log = _served()
    app.state.node = _node()
    app.state.rates = SampledRates(app.state.node)
    app.state.imports = asyncio.Lock()
    log.bug = None
    yield lambda request: runner.run(_ask(app, request))
    if log.bug is not None:
        raise log.bug


async def _ask(app: Starlette, request: httpx.Request) -> httpx.Response:
    url = request.url
    scope = {
        "type": "http",
        "method": request.method,
        "path": url.path,
        "raw_path": url.raw_path.partition(b"?")[0],
        "root_path": "",
        "query_string": url.query,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("127.0.0.1", 5),
        "server": ("node", 80),
        "scheme": "http",
    }
    said: list[MutableMapping[str, Any]] = []
    asked = iter([{"type": "http.request", "body": request.content, "more_body": False}])

    async def receive() -> MutableMapping[str, Any]:
        for message in asked:
            return message
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        said.append(message)

    served = public_app(app) if "authorization" in request.headers else operator_app(app)
    await served(scope, receive, send)
    octets = b"".join(message.get("body", b"") for message in said)
    return httpx.Response(said[0]["status"], headers=said[0]["headers"], content=octets)


def http(octets: bytes) -> None:
    """`METHOD target` and header lines, an empty line, the body: never is the answer of a server's fault."""
    head, _, body = octets.partition(b"\n\n")
    start, *lines = head.split(b"\n")
    method, _, target = start.decode("latin-1").partition(" ")
    headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    with declared(httpx.InvalidURL):
        request = httpx.Request(method, "http://node/" + target.lstrip("/"), content=body)
        request.headers = httpx.Headers([*request.headers.raw, *headers])
        with _fresh_node() as answer:
            status = answer(request).status_code
            expect(200 <= status < 500 or status == 503, f"status {status}")


def http_seeds() -> Iterator[bytes]:
    app, *_ = _served()
    credentials = base64.b64encode(b"guest:secret").decode()
    yield f"GET /api/whoami\nauthorization: Basic {credentials}\norigin: http://node\n\n".encode()
    yield b"DELETE /api/connections/q\nx-reason: because\ncontent-type: application/json\n\n"
    for route in app.routes:
        path: str = getattr(route, "path", "")
        for place in (part.strip("{}") for part in path.split("/") if part.startswith("{")):
            path = path.replace("{" + place + "}", PLACES.get(place, "q"))
        yield f"GET {path}{QUERY}\n\n".encode()
        body: Any = next((value for word, value in BODIES.items() if word in path.split("/")), {})
        for method in ("PUT", "POST", "DELETE"):
            yield f"{method} {path}\n\n".encode() + msgspec.json.encode(body)


# --- command lines ------------------------------------------------------------------------------

LOCAL: Final = frozenset(
    {
        "nodes.cluster",
        "broker.definitions",
        "nodes.health",
        "leveretctl",
        "nodes.lifecycle",
        "nodes.logging",
        "nodes.mirrors",
        "replication.rejoin",
        "replication.schema_replication",
        "replication.standby_logs",
        "replication.standby_promotion",
        "replication.standby_replication",
        "replication.warm_standby",
    }
)
"""Families that act on this machine's files and processes, or wait: not for words that nobody chose."""
assert FAMILIES.keys() >= LOCAL, LOCAL - FAMILIES.keys()
_FAMILY: Final = {name: family for family, (_, names) in FAMILIES.items() for name in names}
_WRITES_A_FILE: Final = "list_divergent_messages"
COMMANDS: Final = sorted(
    name for name, family in _FAMILY.items() if family not in LOCAL and name != _WRITES_A_FILE
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
    with (
        _fresh_node() as answer,
        httpx.Client(transport=httpx.MockTransport(answer), base_url="http://node") as client,
    ):
        yield Api(client, "the node", timeout_s)


def command_line_seeds() -> Iterator[bytes]:
    for number, name in enumerate(COMMANDS):
        example = shlex.split(ctl.load_family(_FAMILY[name])[name].example)[1:]
        yield bytes((number,)) + "\n".join(example).encode()
        yield bytes((number,)) + "\n".join([*example, "--formatter", "json", "-p", "/"]).encode()


DOCUMENTS: Final = (
    Target("configuration", configuration, configuration_seeds),
    Target("definitions", definitions, definitions_seeds),
    Target("definitions-log", changes, change_seeds),
    Target("http", http, http_seeds),
    Target("command-line", command_line, command_line_seeds, 512),
)
