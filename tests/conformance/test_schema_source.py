"""A stock RabbitMQ, and a Leveret, as the upstream of a schema: every kind of entity, followed over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from leveret.core.broker.access import check_password
from leveret.model.definitions import (
    AnyEntity,
    Binding,
    Definitions,
    Exchange,
    GlobalParameter,
    Parameter,
    Permission,
    Policy,
    Queue,
    TopicPermission,
    User,
    Vhost,
)
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.network.waiting import until
from tests.conformance.brokers import Broker
from tests.e2e.schema_pair import Node, endpoints

OPERATOR_POLICY = {"pattern": "^", "definition": {"max-length": 9}, "priority": 1, "apply-to": "queues"}


@contextmanager
def declared(http: httpx.Client, name: str) -> Iterator[None]:
    """Every kind of entity, in a vhost and with a user of this name."""
    wanted: list[tuple[str, dict[str, Any]]] = [
        (f"vhosts/{name}", {"description": "what is bought", "tags": "one,two"}),
        (f"users/{name}", {"password": "s3kRe7", "tags": "monitoring"}),
        (f"permissions/{name}/{name}", {"configure": "", "write": "^a", "read": ".*"}),
        (f"exchanges/{name}/in", {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "lost"}}),
        (f"exchanges/{name}/lost", {"type": "fanout", "durable": True, "internal": True}),
        (f"topic-permissions/{name}/{name}", {"exchange": "in", "write": "^eu", "read": ""}),
        (f"global-parameters/{name}", {"value": {"team": ["a", "b"], "on-call": True, "share": 0.5}}),
        (f"policies/{name}/cap", {"pattern": "^eu", "definition": {"max-length": 7}, "apply-to": "queues"}),
        (f"operator-policies/{name}/limit", OPERATOR_POLICY),
        (f"vhost-limits/{name}/max-queues", {"value": 50}),
        (f"user-limits/{name}/max-connections", {"value": 5}),
        (f"queues/{name}/eu", {"durable": True, "arguments": {"x-queue-type": "quorum", "x-max-length": 11}}),
        (f"queues/{name}/log", {"durable": True, "arguments": {"x-queue-type": "stream"}}),
        (f"queues/{name}/passing", {"durable": False}),
    ]  # fmt: skip
    bindings: list[tuple[str, dict[str, Any]]] = [
        (f"bindings/{name}/e/in/q/eu", {"routing_key": "eu.#", "arguments": {"n": 1, "t": True, "s": "x"}}),
        (f"bindings/{name}/e/in/e/lost", {"routing_key": "lost"}),
        (f"bindings/{name}/e/in/q/passing", {"routing_key": "p"}),
    ]
    try:
        for path, body in wanted:
            http.put(path, json=body).raise_for_status()
        for path, body in bindings:
            http.post(path, json=body).raise_for_status()
        yield
    finally:
        for path in (f"vhosts/{name}", f"users/{name}", f"global-parameters/{name}"):
            http.delete(path)


def expected(name: str) -> list[AnyEntity]:
    """What of it travels, but for the user, whose hash has a salt."""
    limit = Parameter(vhost=name, component="operator_policy", name="limit", value=OPERATOR_POLICY)
    arguments = {"n": 1, "t": True, "s": "x"}
    return [
        Vhost(name=name, description="what is bought", tags=("one", "two")),
        Permission(vhost=name, user="guest", configure=".*", write=".*", read=".*"),
        Permission(vhost=name, user=name, configure="", write="^a", read=".*"),
        Exchange(vhost=name, name="in", type="topic", arguments={"alternate-exchange": "lost"}),
        Exchange(vhost=name, name="lost", type="fanout", internal=True),
        TopicPermission(vhost=name, user=name, exchange="in", write="^eu", read=""),
        GlobalParameter(name=name, value={"team": ["a", "b"], "on-call": True, "share": 0.5}),
        Policy(vhost=name, name="cap", pattern="^eu", definition={"max-length": 7}, apply_to="queues"),
        limit,
        Parameter(vhost=name, component="vhost-limits", name="limits", value={"max-queues": 50}),
        Queue(vhost=name, name="eu", arguments={"x-queue-type": "quorum", "x-max-length": 11}),
        Queue(vhost=name, name="log", arguments={"x-queue-type": "stream"}),
        Binding(vhost=name, source="in", destination="eu", routing_key="eu.#", arguments=arguments),
        Binding(vhost=name, source="in", destination="lost", destination_type="exchange", routing_key="lost"),
    ]


def held_of(definitions: Definitions, name: str) -> dict[tuple[str, ...], AnyEntity]:
    """All entities in the vhost of this name, and those of this name."""
    return {
        (entity.kind, *entity.key): entity
        for entities in definitions.by_kind.values()
        for entity in entities.values()
        if name in entity.key[:1] and entity.kind != "users"
    }


def test_a_schema_with_every_kind_of_entity_is_followed_over_http(
    broker: Broker, http: httpx.Client, name: str, tmp_path: Path
) -> None:
    async def follow() -> None:
        node = Node(tmp_path, "down", operating_mode="downstream")
        node.put(Vhost(name="old"), Queue(vhost="old", name="q"))
        text = endpoints(broker.management_port, username="guest", password="guest")
        await node.schema_sync.set_endpoints(text.replace(LOOPBACK, f"http://{LOOPBACK}"))
        await node.schema_sync.start()
        status, definitions = node.schema_sync.status, node.broker.definitions
        try:
            await until(lambda: status()["syncs"], "a first sync")
            mine = [text for text in status()["refused"] if name in text]
            assert mine == [], "nothing of it is refused"
            found = {
                key: entity if entity.kind != "queues" else Queue(**{**_fields(entity), "epoch": 0})
                for key, entity in held_of(definitions, name).items()
            }
            assert found == {(entity.kind, *entity.key): entity for entity in expected(name)}
            user = definitions.by_kind["users"][name,]
            assert isinstance(user, User)
            assert check_password(user, "s3kRe7")
            assert (user.tags, user.limits) == (("monitoring",), {"max-connections": 5})
            assert ("old",) not in definitions.by_kind["vhosts"]
            assert ("internal_cluster_id",) not in definitions.by_kind["global_parameters"]

            done = await node.schema_sync.sync(force=False)
            assert (done["puts"], done["deletes"]) == (0, 0), "what did not change is not applied again"
            await asyncio.to_thread(http.delete, f"queues/{name}/eu")
            body = {"pattern": "^log", "definition": {"max-length": 8}, "apply-to": "queues"}
            await asyncio.to_thread(http.put, f"policies/{name}/cap", json=body)
            done = await node.schema_sync.sync(force=False)
            assert set(done["changes"]) == {
                f"delete bindings {name}/in/queue/eu/eu.#/{_key(name)}",
                f"delete queues {name}/eu",
                f"put policies {name}/cap",
            }
        finally:
            await node.schema_sync.stop()

    with declared(http, name):
        asyncio.run(follow())


def _fields(entity: AnyEntity) -> dict[str, Any]:
    return {field: getattr(entity, field) for field in entity.__struct_fields__}


def _key(name: str) -> str:
    return next(one for one in expected(name) if isinstance(one, Binding) and one.arguments).properties_key
