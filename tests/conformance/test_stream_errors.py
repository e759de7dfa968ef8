"""What clients of the stream protocol are declined is counted, under RabbitMQ's names and as it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

import pytest

from leveret.testing.network.ports import wait_until
from leveret.wire.stream import commands as wire
from tests.conformance.brokers import RABBITMQ, Broker, running
from tests.conformance.conftest import BROKERS, kind_of
from tests.conformance.http_scene import client_of
from tests.conformance.stream_talker import FRAME_MAX_BYTES, RIGHT, StreamTalker
from tests.conformance.test_metrics import scraped, types_of

STREAM: Final = "s"
PREFIX: Final = "rabbitmq_global_stream_error_"


def read(client: StreamTalker) -> None:
    client.subscribe(STREAM)


def declare(client: StreamTalker) -> None:
    client.declare_publisher(1, STREAM)


def inside(
    *steps: Callable[[StreamTalker], object], username: str = "guest"
) -> Callable[[StreamTalker], None]:
    """These steps of a client that was let in."""

    def do(client: StreamTalker) -> None:
        client.enter(username=username)
        for step in steps:
            step(client)

    return do


def _unknown_frame(client: StreamTalker) -> None:
    client.socket.sendall((4).to_bytes(4, "big") + b"\0\x77\0\x01")
    client.await_one(wire.Close)


def _too_large(client: StreamTalker) -> None:
    client.socket.sendall((4 * FRAME_MAX_BYTES).to_bytes(4, "big") + bytes(4 * FRAME_MAX_BYTES))
    client.await_one(wire.Close)


def _unpublished(client: StreamTalker) -> None:
    client.publish(9, 1, 2, 3)
    client.await_one(wire.PublishError)


CASES: Final[dict[str, tuple[Callable[[StreamTalker], object], dict[str, int]]]] = {
    "a mechanism that is not offered": (
        lambda client: client.greet(RIGHT, "NOSUCH"),
        {"sasl_mechanism_not_supported": 1},
    ),
    "a wrong password": (lambda client: client.greet(b"\0guest\0wrong"), {"authentication_failure": 1}),
    "a vhost that is not there": (lambda client: client.enter("nosuch"), {"vhost_access_failure": 1}),
    "a stream that is not there, to read": (
        inside(lambda client: client.subscribe("nosuch")),
        {"stream_does_not_exist": 1},
    ),
    "a stream that is not there, to write": (
        inside(lambda client: client.declare_publisher(1, "nosuch")),
        {"stream_does_not_exist": 1},
    ),
    "a stream that is not there, to delete": (
        inside(lambda client: client.ask(wire.DeleteStream(7, "nosuch"), wire.DeleteResponse)),
        {"stream_does_not_exist": 1},
    ),
    "a stream that is not there, for its metadata": (
        inside(lambda client: client.ask(wire.Metadata(7, ["nosuch"]), wire.MetadataResponse)),
        {},
    ),
    "a stream that is there already": (
        inside(lambda client: client.ask(wire.Create(7, STREAM, {}), wire.CreateResponse)),
        {"stream_already_exists": 1},
    ),
    "a subscription of a number that is taken": (inside(read, read), {"subscription_id_already_exists": 1}),
    "a subscription that is not there": (
        inside(lambda client: client.ask(wire.Unsubscribe(7, 9), wire.UnsubscribeResponse)),
        {"subscription_id_does_not_exist": 1},
    ),
    "credit for a subscription that is not there": (
        inside(lambda client: client.ask(wire.Credit(9, 1), wire.CreditResponse)),
        {"subscription_id_does_not_exist": 1},
    ),
    "a publisher that is not there, to end": (
        inside(lambda client: client.ask(wire.DeletePublisher(7, 9), wire.DeletePublisherResponse)),
        {"publisher_does_not_exist": 1},
    ),
    "three messages of a publisher that is not there": (
        inside(_unpublished),
        {"publisher_does_not_exist": 1},
    ),
    "a publisher twice": (inside(declare, declare), {"precondition_failed": 1}),
    "an offset that was never stored": (
        inside(lambda client: client.ask(wire.QueryOffset(7, "nobody", STREAM), wire.QueryOffsetResponse)),
        {},
    ),
    "a stream that the user may not read": (inside(read, username="limited"), {"access_refused": 1}),
    "a command that there is not": (inside(_unknown_frame), {"unknown_frame": 1}),
    "a frame that is too large": (inside(_too_large), {"frame_too_large": 1}),
}


OF_RABBITMQ: Final[dict[str, dict[str, int]]] = {
    "a mechanism that is not offered": {},
    "a wrong password": {},
    "a vhost that is not there": {},
    "a frame that is too large": {"unknown_frame": 1},
}
"""What RabbitMQ 3.10 counts instead: it counts no login, and takes what is too large for what it does not know."""


@pytest.fixture(scope="module", params=BROKERS)
def stage(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker with a stream, and a user who may do nothing with it."""
    kind = kind_of(request)
    with running(kind, plugins=("rabbitmq_stream",) if kind == RABBITMQ else ()) as broker:
        with client_of(broker) as http:
            http.put("users/limited", json={"password": "guest", "tags": ""}).raise_for_status()
            nothing = {"configure": "^$", "write": "^$", "read": "^$"}
            http.put("permissions/%2F/limited", json=nothing).raise_for_status()
        with broker.connect() as connection:
            arguments = {"x-queue-type": "stream"}
            connection.channel().queue_declare(STREAM, durable=True, arguments=arguments)
        yield broker


def errors(broker: Broker) -> dict[str, float]:
    """How often each error was counted."""
    return {
        name.removeprefix(PREFIX).removesuffix("_total"): value
        for (name, labels), value in scraped(broker).items()
        if name.startswith(PREFIX) and labels == (("protocol", "stream"),)
    }


@pytest.mark.parametrize("case", CASES)
def test_an_error_is_counted_under_its_name(stage: Broker, case: str) -> None:
    do, expected = CASES[case]
    if stage.kind == RABBITMQ:
        expected = OF_RABBITMQ.get(case, expected)
    before = errors(stage)
    client = StreamTalker(stage.stream_port)
    with closing(client.socket):
        do(client)
        seen: dict[str, float] = {}

        def counted() -> bool:
            now = errors(stage)
            seen.clear()
            seen.update({name: now[name] - before[name] for name in now if now[name] != before[name]})
            return seen == expected

        try:
            wait_until(counted, "the count", 6)
        finally:
            assert seen == expected


def test_the_deletion_of_a_stream_is_an_error_of_who_uses_it(stage: Broker) -> None:
    client = StreamTalker(stage.stream_port)
    with closing(client.socket):
        client.enter()
        client.ask(wire.Create(7, "goes", {}), wire.CreateResponse)
        client.subscribe("goes")
        before = errors(stage)
        client.ask(wire.DeleteStream(8, "goes"), wire.DeleteResponse)
        client.await_one(wire.MetadataUpdate)
        wait_until(
            lambda: errors(stage)["stream_not_available"] == before["stream_not_available"] + 1, "it", 6
        )


def test_the_errors_are_counters_of_these_names(stage: Broker) -> None:
    found = {name: kind for name, kind in types_of(stage.metrics()).items() if name.startswith(PREFIX)}
    assert set(found.values()) == {"counter"}
    names = """access_refused authentication_failure frame_too_large internal_error precondition_failed
        publisher_does_not_exist sasl_authentication_failure_loopback sasl_challenge sasl_error
        sasl_mechanism_not_supported stream_already_exists stream_does_not_exist stream_not_available
        subscription_id_already_exists subscription_id_does_not_exist unknown_frame vhost_access_failure"""
    assert set(found) == {f"{PREFIX}{name}_total" for name in names.split()}
