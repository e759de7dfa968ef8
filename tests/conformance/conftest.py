"""The brokers, clients and names that conformance tests share.

`broker` runs every test twice: on RabbitMQ 3.10.8, which says what is right, and on Leveret. Each
broker starts once; pytest-xdist keeps its tests in one worker. A test marked `later` states what
RabbitMQ does and Leveret does not do yet: there it must fail, until the marker is taken away.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from leveret.testing.servers.rabbitmq import available
from tests.conformance.brokers import LEVERET, RABBITMQ, Broker, running
from tests.conformance.http_scene import PLUGINS, client_of, played, shapes
from tests.conformance.rawclient import Peer
from tests.conformance.secured import Secured, running_secured

HERE = Path(__file__).parent
# A broker's start counts too, and the end of a test: a connection that its broker blocked can wait there for ever.
TIMEOUT = pytest.mark.timeout(240)

BROKERS = [
    pytest.param(RABBITMQ, marks=[pytest.mark.rabbitmq, pytest.mark.xdist_group("rabbitmq")]),
    pytest.param(LEVERET, marks=pytest.mark.xdist_group("leveret")),
]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "later: a feature of RabbitMQ that Leveret does not have yet")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(TIMEOUT)
        called_with = (
            item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        )
        if item.get_closest_marker("later") and called_with.get("broker") == LEVERET:
            item.add_marker(pytest.mark.xfail(reason="Leveret does not have this yet"))


def kind_of(request: pytest.FixtureRequest) -> str:
    """Which broker a fixture is asked for; the test is skipped if it cannot be run here."""
    kind: str = request.param
    reason = available() if kind == RABBITMQ else None
    if reason is not None:
        pytest.skip(reason)
    return kind


@pytest.fixture(scope="session", params=BROKERS)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with running(kind_of(request)) as one:
        yield one


@pytest.fixture(scope="session", params=BROKERS)
def scene(request: pytest.FixtureRequest) -> tuple[str, list[str]]:
    """A kind of broker, and the shapes of what its HTTP API tells of the scene; nobody else is connected."""
    kind = kind_of(request)
    plugins = PLUGINS if kind == RABBITMQ else ()
    with running(kind, plugins=plugins) as one, played(one) as http:
        return kind, shapes(http, one)


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    """The broker's HTTP API for guest, an administrator; paths are relative to `/api/`."""
    with client_of(broker) as client:
        yield client


@pytest.fixture(scope="session", params=BROKERS)
def secured(request: pytest.FixtureRequest) -> Iterator[Secured]:
    """A broker with TLS, of its own: its settings would change what other tests see."""
    with running_secured(kind_of(request)) as one:
        yield one


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[..., pika.BlockingConnection]]:
    """Makes pika connections that end with the test."""
    made: list[pika.BlockingConnection] = []

    def make(*args: Any, **options: Any) -> pika.BlockingConnection:
        made.append(broker.connect(*args, **options))
        return made[-1]

    yield make
    for one in made:
        if one.is_open:
            one.close()


@pytest.fixture
def connection(connect: Callable[..., pika.BlockingConnection]) -> pika.BlockingConnection:
    return connect()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> Any:
    return connection.channel()


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    """A raw connection, logged in as guest at vhost `/`, with channel 1 open."""
    with broker.peer() as one:
        one.login()
        one.open_channel(1)
        yield one


@pytest.fixture
def name() -> str:
    """A name nobody else has: for a queue, an exchange, a vhost or a user."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue(channel: Any, name: str) -> str:
    """A durable queue that nobody else has."""
    channel.queue_declare(name, durable=True)
    return name
