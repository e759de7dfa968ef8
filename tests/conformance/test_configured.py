"""What a first start makes of the settings: definitions to import, the default user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pika.exceptions import ChannelClosedByBroker, ProbableAuthenticationError

from leveret.testing.network.ports import LOOPBACK
from tests.conformance.brokers import Broker, running
from tests.conformance.conftest import BROKERS, kind_of
from tests.conformance.rawclient import PATIENCE_S

DEFINITIONS: dict[str, Any] = {
    "users": [{"name": "app", "password": "s3cret", "tags": "administrator"}],
    "vhosts": [{"name": "shop"}],
    "permissions": [{"user": "app", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}],
    "exchanges": [
        {"name": "x", "vhost": "shop", "type": "topic", "durable": True, "auto_delete": False}
        | {"internal": False, "arguments": {}}
    ],
    "queues": [{"name": "q", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {}}],
    "bindings": [
        {"source": "x", "vhost": "shop", "destination": "q", "destination_type": "queue"}
        | {"routing_key": "a.#", "arguments": {}}
    ],
    "policies": [
        {"vhost": "shop", "name": "p", "pattern": "^q$", "apply-to": "queues", "priority": 1}
        | {"definition": {"max-length": 10}}
    ],
}


def started(request: pytest.FixtureRequest, config: dict[str, str]) -> Iterator[Broker]:
    with running(kind_of(request), config) as broker:
        yield broker


@pytest.fixture(scope="module", params=BROKERS)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that imports DEFINITIONS at its first start, and has a default user set as well."""
    file = tmp_path_factory.mktemp("definitions") / "d.json"
    file.write_text(json.dumps(DEFINITIONS))
    config = {
        "definitions.import_backend": "local_filesystem",
        "definitions.local.path": str(file),
        "default_user": "first",
        "default_pass": "s3cret",
    }
    yield from started(request, config)


@pytest.fixture(scope="module", params=BROKERS)
def seeded(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker with settings for its first user."""
    config = {
        "default_user": "first",
        "default_pass": "s3cret",
        "default_vhost": "shop",
        "default_user_tags.administrator": "true",
        "default_user_tags.management": "true",
        "default_permissions.configure": "^own",
        # The same for both: RabbitMQ 3.10.8 takes the one for the other.
        "default_permissions.write": "^(amq|own)",
        "default_permissions.read": "^(amq|own)",
    }
    yield from started(request, config)


def asked(broker: Broker, path: str, user: str) -> Any:
    url = f"http://{LOOPBACK}:{broker.management_port}/api/{path}"
    return httpx.get(url, auth=(user, "s3cret"), timeout=PATIENCE_S).raise_for_status().json()


def test_definitions_replace_the_default_user_and_vhost(imported: Broker) -> None:
    assert [user["name"] for user in asked(imported, "users", "app")] == ["app"]
    assert [vhost["name"] for vhost in asked(imported, "vhosts", "app")] == ["shop"]
    for user, password in (("guest", "guest"), ("first", "s3cret")):
        with pytest.raises(ProbableAuthenticationError):
            imported.connect(user, password)


def test_imported_definitions_route_and_apply(imported: Broker) -> None:
    with imported.connect("app", "s3cret", vhost="shop") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(12):
            channel.basic_publish("x", "a.b", str(number).encode(), mandatory=True)
        assert channel.queue_declare("q", passive=True).method.message_count == 10


def test_the_first_user_has_the_tags_and_permissions_that_were_set(seeded: Broker) -> None:
    [user] = asked(seeded, "users", "first")
    tags = user["tags"] if isinstance(user["tags"], list) else user["tags"].split(",")
    assert (user["name"], sorted(tags)) == ("first", ["administrator", "management"])
    [permission] = asked(seeded, "permissions", "first")
    assert (permission["configure"], permission["write"], permission["read"]) == ("^own", *2 * ["^(amq|own)"])
    assert (permission["user"], permission["vhost"]) == ("first", "shop")
    with seeded.connect("first", "s3cret", vhost="shop") as connection:
        connection.channel().queue_declare("own", exclusive=True)
        with pytest.raises(ChannelClosedByBroker, match="403"):
            connection.channel().queue_declare("other")
