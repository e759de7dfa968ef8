"""Policies, operator policies, limits and the vhost's default type, set over HTTP and seen over AMQP.

Texts are those of RabbitMQ 3.10.8; what 3.13 added to policies is in tests/unit/core.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any, Final

import httpx
import pytest
from pamqp import commands

from leveret.testing.network.ports import LOOPBACK, wait_until
from tests.conformance.brokers import Broker
from tests.conformance.rawclient import PATIENCE_S
from tests.conformance.verbs import (
    channel_refuses,
    connection_refuses,
    drain,
    publish,
    ready_count,
    wait_ready,
)

Ask = Callable[..., httpx.Response]
UNKNOWN: Final = '[{{<<"{}">>,{}}}] are not recognised policy settings'


@pytest.fixture
def ask(broker: Broker) -> Ask:
    """Asks the management API: (method, path, JSON body) -> reply."""

    def request(method: str, path: str, body: object = None) -> httpx.Response:
        url = f"http://{LOOPBACK}:{broker.management_port}/api/{path}"
        return httpx.request(method, url, json=body, auth=("guest", "guest"), timeout=PATIENCE_S)

    return request


@pytest.fixture
def vhost(broker: Broker, ask: Ask, name: str) -> Any:
    """A vhost for one test: its limits and policies are nobody else's."""
    broker.add_vhost(name)
    yield name
    ask("DELETE", f"vhosts/{name}")


@pytest.fixture
def inside(connect: Any, vhost: str) -> Any:
    """A channel in the test's own vhost."""
    return connect(vhost=vhost).channel()


def put(ask: Ask, path: str, body: object) -> None:
    ask("PUT", path, body).raise_for_status()


def refused_at_open(broker: Broker, vhost: str) -> tuple[int, str]:
    """How guest is told that there is no place in the vhost."""
    with broker.peer() as peer:
        peer.authenticate()
        peer.tune()
        peer.send(0, commands.Connection.Open(virtual_host=vhost))
        return peer.expect_connection_close()


def can_open(broker: Broker, vhost: str) -> bool:
    with broker.peer() as peer:
        peer.authenticate()
        peer.tune()
        peer.send(0, commands.Connection.Open(virtual_host=vhost))
        return isinstance(peer.receive()[1], commands.Connection.OpenOk)


def refusal(reply: httpx.Response) -> str:
    """The reason of a 400; RabbitMQ escapes some of them for browsers."""
    assert reply.status_code == 400, reply.text
    reason: str = reply.json()["reason"]
    return html.unescape(reason)


def faults(reply: httpx.Response) -> list[str]:
    first, blank, *lines, end = refusal(reply).split("\n")
    assert (first, blank, end) == ("Validation failed", "", "")
    return lines


@pytest.mark.parametrize(
    ("definition", "fault"),
    [
        ({}, "no policy provided"),
        ({"bogus": 1}, UNKNOWN.format("bogus", 1)),
        ({"federation-upstream": "a"}, UNKNOWN.format("federation-upstream", '<<"a">>')),
        ({"bogus": 1, "max-length": "a"}, '<<"a">> is not a valid maximum length'),
        ({"z": [1, "a"], "max-length": 5, "y": {"k": None}},
         '[{<<"y">>,#{<<"k">> => null}},{<<"z">>,[1,<<"a">>]}] are not recognised policy settings'),
        ({"max-length": -1}, "-1 is not a valid maximum length"),
        ({"max-length": 1.5}, "1.5 is not a valid maximum length"),
        ({"max-length": True}, "true is not a valid maximum length"),
        ({"max-length": {"a": 1}}, '#{<<"a">> => 1} is not a valid maximum length'),
        ({"max-length-bytes": -5}, "-5 is not a valid maximum length in bytes"),
        ({"message-ttl": "a"}, '<<"a">> is not a valid message TTL'),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"overflow": "x"}, '<<"x">> is not a valid overflow value'),
        ({"dead-letter-exchange": 1}, "1 is not a valid dead letter exchange name"),
        ({"dead-letter-routing-key": 1}, "1 is not a valid dead letter routing key"),
        ({"dead-letter-strategy": "a"}, '<<"a">> is not a valid dead letter strategy'),
        ({"delivery-limit": -1}, "-1 is not a valid delivery limit"),
        ({"max-age": "7x"}, '<<"7x">> is not a valid max age'),
        ({"stream-max-segment-size-bytes": 3_000_000_001}, "3000000001 is not a valid segment size"),
        ({"queue-mode": "x"}, '<<"x">> is not a valid queue-mode value'),
        ({"queue-version": 3}, "3 is not a valid queue-version value"),
        ({"alternate-exchange": 1}, "1 is not a valid alternate exchange name"),
        ({"queue-master-locator": "foo"}, '<<"foo">> invalid queue-master-locator value'),
        ({"queue-leader-locator": "x"}, '<<"x">> is not a valid queue leader locator value'),
        ({"initial-cluster-size": -1}, "-1 is not a valid cluster size"),
        ({"max-in-memory-length": -1}, "-1 is not a valid maximum memory in bytes"),
        ({"message-ttl": "x", "expires": "y"}, '<<"y">> is not a valid queue expiry'),
        ({"ha-mode": "all", "ha-sync-mode": "x", "ha-sync-batch-size": 0},
         'ha-sync-mode must be "manual" or "automatic", got <<"x">>'),
        ({"ha-mode": "exactly", "ha-params": 2, "ha-sync-batch-size": 0, "ha-promote-on-failure": "x"},
         "ha-sync-batch-size takes an integer greater than 0, 0 given"),
        ({"ha-mode": "all", "ha-promote-on-shutdown": "x", "ha-promote-on-failure": "y"},
         'ha-promote-on-shutdown must be "always" or "when-synced", got <<"x">>'),
    ],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(
    ask: Ask, name: str, definition: dict[str, Any], fault: str
) -> None:
    body = {"pattern": "^nothing$", "definition": definition}
    assert faults(ask("PUT", f"policies/%2F/{name}", body)) == [fault]


@pytest.mark.parametrize(
    ("definition", "fault"),
    [
        ({"dead-letter-exchange": "x"}, UNKNOWN.format("dead-letter-exchange", '<<"x">>')),
        ({"queue-mode": "lazy"}, UNKNOWN.format("queue-mode", '<<"lazy">>')),
        ({"max-age": "7D"}, UNKNOWN.format("max-age", '<<"7D">>')),
        ({"max-length": "a"}, '<<"a">> is not a valid maximum length'),
        ({}, "no policy provided"),
    ],
)
def test_an_operator_policy_says_only_how_much_and_how_long(
    ask: Ask, name: str, definition: dict[str, Any], fault: str
) -> None:
    body = {"pattern": "^nothing$", "definition": definition, "apply-to": "queues"}
    assert faults(ask("PUT", f"operator-policies/%2F/{name}", body)) == [fault]


@pytest.mark.parametrize(
    ("component", "value", "expected"),
    [
        ("bogus", 1, ["component bogus not found"]),
        ("shovel", {}, ["component shovel not found"]),
        ("vhost-limits", {"max-connections": "a"},
         ['max-connections should be a number, actually was <<"a">>']),
        ("vhost-limits", {"max-queues": 1.5}, ["max-queues should be a number, actually was 1.5"]),
        ("vhost-limits", {"bogus": 1, "max-queues": 2}, ['Unrecognised terms [{<<"bogus">>,1}] in limits']),
        ("vhost-limits", 5, ["limits not a list 5"]),
        ("operator_policy", {"definition": {"max-length": 1}, "q": 1},
         ['Unrecognised terms [{<<"q">>,1}] in limits',
          'Key "pattern" not found in limits',
          'Key "priority" not found in limits']),
        ("operator_policy", 1, ["limits not a list 1"]),
    ],
)  # fmt: skip
def test_a_runtime_parameter_is_what_its_component_says(
    ask: Ask, vhost: str, component: str, value: object, expected: list[str]
) -> None:
    assert faults(ask("PUT", f"parameters/{component}/{vhost}/limits", {"value": value})) == expected


def test_a_policy_is_no_runtime_parameter(ask: Ask, vhost: str) -> None:
    reply = ask("PUT", f"parameters/policy/{vhost}/p", {"value": {"pattern": "", "definition": {}}})
    assert refusal(reply) == "policies may not be set using this method"


def test_a_policy_holds_at_once_and_until_it_goes(ask: Ask, vhost: str, inside: Any) -> None:
    inside.queue_declare("q")
    publish(inside, "q", b"1", b"2", b"3")
    wait_ready(inside, "q", 3)
    put(ask, f"policies/{vhost}/p", {"pattern": "^q", "definition": {"max-length": 2}, "apply-to": "queues"})
    wait_ready(inside, "q", 2)
    ask("DELETE", f"policies/{vhost}/p").raise_for_status()
    publish(inside, "q", b"4")
    wait_ready(inside, "q", 3)
    assert drain(inside, "q") == [b"2", b"3", b"4"]


def test_the_highest_priority_counts_and_only_it(ask: Ask, vhost: str, inside: Any) -> None:
    put(ask, f"policies/{vhost}/low", {"pattern": "", "definition": {"max-length": 1}, "priority": 1})
    # Any number will do.
    high = {"pattern": "^q", "definition": {"message-ttl": 10**6}, "priority": 1.5}
    put(ask, f"policies/{vhost}/high", high)
    for queue in ("q", "other"):
        inside.queue_declare(queue)
        publish(inside, queue, b"1", b"2")
    wait_ready(inside, "q", 2)
    wait_ready(inside, "other", 1)


def test_the_operators_smaller_number_counts(ask: Ask, vhost: str, inside: Any) -> None:
    inside.queue_declare("q", arguments={"x-max-length": 4})
    put(ask, f"policies/{vhost}/p", {"pattern": "", "definition": {"max-length": 3}})
    put(
        ask,
        f"operator-policies/{vhost}/o",
        {"pattern": "", "definition": {"max-length": 2}, "apply-to": "queues"},
    )
    publish(inside, "q", *[b"x"] * 5)
    wait_ready(inside, "q", 2)
    shown = wait_for_policies(ask, vhost, "q")
    assert (shown["policy"], shown["operator_policy"]) == ("p", "o")
    assert shown["effective_policy_definition"] == {"max-length": 2}
    [parameter] = ask("GET", f"parameters/operator_policy/{vhost}").json()
    assert (parameter["name"], parameter["value"]["definition"]) == ("o", {"max-length": 2})


def wait_for_policies(ask: Ask, vhost: str, queue: str) -> dict[str, Any]:
    """What the management API tells of the queue once it knows of its policies."""
    shown: dict[str, Any] = {}

    def known() -> bool:
        shown.update(ask("GET", f"queues/{vhost}/{queue}").json())
        return bool(shown.get("operator_policy"))

    wait_until(known, f"the policies of {queue}", PATIENCE_S)
    return shown


def test_a_policy_with_a_key_that_a_queue_does_not_have_leaves_it_alone(
    ask: Ask, vhost: str, inside: Any
) -> None:
    both = {"max-length": 1, "delivery-limit": 5}
    put(ask, f"policies/{vhost}/p", {"pattern": "", "definition": both})
    inside.queue_declare("q")
    publish(inside, "q", b"1", b"2")
    wait_ready(inside, "q", 2)


def test_a_policys_alternate_exchange_takes_what_goes_nowhere(ask: Ask, vhost: str, inside: Any) -> None:
    inside.exchange_declare("e", "direct")
    inside.queue_declare("q")
    inside.queue_bind("q", "amq.fanout")
    put(ask, f"policies/{vhost}/p", {"pattern": "^e$", "definition": {"alternate-exchange": "amq.fanout"}})
    inside.confirm_delivery()
    inside.basic_publish("e", "nowhere", b"x", mandatory=True)
    assert ready_count(inside, "q") == 1


def test_a_vhost_has_no_more_queues_than_its_limit(ask: Ask, vhost: str, inside: Any) -> None:
    put(ask, f"parameters/vhost-limits/{vhost}/limits", {"value": {"max-queues": 1}})
    inside.queue_declare("a")
    inside.queue_declare("a")
    refused = f"cannot declare queue 'b': queue limit in vhost '{vhost}' (1) is reached"
    with channel_refuses(406, f"PRECONDITION_FAILED - {refused}"):
        inside.queue_declare("b", exclusive=True)


def test_a_negative_limit_is_none(ask: Ask, vhost: str, connect: Any) -> None:
    limits = {"value": {"max-queues": -1, "max-connections": -1}}
    put(ask, f"parameters/vhost-limits/{vhost}/limits", limits)
    connect(vhost=vhost).channel().queue_declare("a")


def test_a_vhost_has_no_more_connections_than_its_limit(
    ask: Ask, broker: Broker, vhost: str, connect: Any
) -> None:
    put(ask, f"parameters/vhost-limits/{vhost}/limits", {"value": {"max-connections": 1}})
    first = connect(vhost=vhost)
    refused = f"access to vhost '{vhost}' refused for user 'guest': connection limit (1) is reached"
    assert refused_at_open(broker, vhost) == (530, f"NOT_ALLOWED - {refused}")
    first.close()
    wait_until(lambda: can_open(broker, vhost), "a free place", PATIENCE_S)


def test_a_limit_of_no_connections_lets_nobody_in(ask: Ask, broker: Broker, vhost: str) -> None:
    put(ask, f"parameters/vhost-limits/{vhost}/limits", {"value": {"max-connections": 0}})
    refused = f"access to vhost '{vhost}' refused for user 'guest': connection limit (0) is reached"
    assert refused_at_open(broker, vhost) == (530, f"NOT_ALLOWED - {refused}")


def test_a_user_has_no_more_connections_than_the_limit(
    ask: Ask, broker: Broker, vhost: str, connect: Any
) -> None:
    broker.add_user(vhost, "secret")
    broker.set_permissions(vhost, vhost)
    put(ask, f"user-limits/{vhost}/max-connections", {"value": 1})
    connect(vhost, "secret", vhost=vhost)
    with broker.peer() as peer:
        peer.authenticate(vhost, "secret")
        peer.tune()
        peer.send(0, commands.Connection.Open(virtual_host=vhost))
        code, text = peer.expect_connection_close()
    # 3.13 begins it with a small letter.
    refused = f"onnection refused for user '{vhost}': user connection limit (1) is reached"
    assert (code, text[:15].lower(), text[15:]) == (530, "not_allowed - c", refused)


def test_a_user_has_no_more_channels_than_the_limit(
    ask: Ask, broker: Broker, vhost: str, connect: Any
) -> None:
    broker.add_user(vhost, "secret")
    broker.set_permissions(vhost, vhost)
    put(ask, f"user-limits/{vhost}/max-channels", {"value": 2})
    first, second = (connect(vhost, "secret", vhost=vhost) for _ in range(2))
    first.channel().queue_declare("", exclusive=True)
    second.channel().queue_declare("", exclusive=True)
    refused = (
        f"number of channels opened for user '{vhost}' has reached the maximum allowed user limit of (2)"
    )
    with connection_refuses(530, f"NOT_ALLOWED - {refused}"):
        second.channel()


def test_a_vhosts_default_type_is_that_of_queues_without_one(
    broker: Broker, ask: Ask, name: str, connect: Any
) -> None:
    # The first name is that of 3.10, which takes a default only for a new vhost.
    put(ask, f"vhosts/{name}", {"defaultqueuetype": "quorum", "default_queue_type": "quorum"})
    broker.set_permissions("guest", name)
    channel = connect(vhost=name).channel()
    channel.queue_declare("q", durable=True)
    channel.queue_declare("q", durable=True)
    channel.queue_declare("transient", exclusive=True)
    shown = ask("GET", f"queues/{name}/q").json()
    assert (shown["type"], shown["arguments"]) == ("quorum", {"x-queue-type": "quorum"})
    assert ask("GET", f"queues/{name}/transient").json()["type"] == "classic"
    different = f"inequivalent arg 'x-queue-type' for queue 'q' in vhost '{name}'"
    told_values = "received 'classic' but current is 'quorum'"
    with channel_refuses(406, f"PRECONDITION_FAILED - {different}: {told_values}"):
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "classic"})
    channel.connection.close()
    ask("DELETE", f"vhosts/{name}")


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
@pytest.mark.parametrize("priority", ["3", "x", None, True])
def test_a_priority_that_is_no_number_is_refused(ask: Ask, name: str, kind: str, priority: Any) -> None:
    body = {"pattern": "^none", "definition": {"max-length": 5}, "priority": priority}
    assert ask("PUT", f"{kind}/%2F/{name}", body).status_code == 400
