"""Changes of definitions that the disk refuses: nobody is told of success until they are logged."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import httpx
import pytest
from pamqp import commands

from leveret.core.queues.messages import alike
from leveret.core.queues.stream import StreamBatch
from leveret.management.http.app import build_app, operator_app
from leveret.model import definitions as d
from leveret.model.errors import LeveretError, StorageError
from leveret.runtime.clients.recovery_ingest import RecoveryIngest
from leveret.storage.open_segments import storage_error
from leveret.testing.network.waiting import until
from leveret.wire.stream.publish import MessageRun
from tests.unit.management.fake_replication import FakeReplication
from tests.unit.runtime.collecting.site import BODY_BYTES, HEAD, Site
from tests.unit.runtime.logs.test_engine import Client

CHANGES: Final[dict[str, tuple[str, str, dict[str, Any] | None]]] = {
    "a virtual host": ("PUT", "vhosts/w", {}),
    "the end of a virtual host": ("DELETE", "vhosts/v", None),
    "a user": ("PUT", "users/u", {"password": "p", "tags": ""}),
    "the end of a user": ("DELETE", "users/leaver", None),
    "ends of users": ("POST", "users/bulk-delete", {"users": ["leaver"]}),
    "a permission": ("PUT", "permissions/v/leaver", {"configure": "", "write": "", "read": ""}),
    "a topic permission": (
        "PUT",
        "topic-permissions/v/leaver",
        {"exchange": "amq.topic", "write": "", "read": ""},
    ),
    "a policy": ("PUT", "policies/v/p", {"pattern": "^", "definition": {"max-length": 5}}),
    "an operator policy": ("PUT", "operator-policies/v/p", {"pattern": "^", "definition": {"max-length": 5}}),
    "a limit of a virtual host": ("PUT", "vhost-limits/v/max-queues", {"value": 7}),
    "a limit of a user": ("PUT", "user-limits/leaver/max-connections", {"value": 7}),
    "a global parameter": ("PUT", "global-parameters/g", {"value": 1}),
    "a name of the cluster": ("PUT", "cluster-name", {"name": "other"}),
    "an exchange": ("PUT", "exchanges/v/new", {"type": "fanout", "durable": True}),
    "the end of an exchange": ("DELETE", "exchanges/v/e", None),
    "a queue": ("PUT", "queues/v/new", {"durable": True}),
    "a stream": ("PUT", "queues/v/new", {"durable": True, "arguments": {"x-queue-type": "stream"}}),
    "the end of a queue": ("DELETE", "queues/v/q", None),
    "a binding": ("POST", "bindings/v/e/amq.direct/q/q", {"routing_key": "k"}),
    "the end of a binding": ("DELETE", "bindings/v/e/e/q/q/~", None),
    "a document": ("POST", "definitions", {"queues": [{"vhost": "v", "name": "new"}]}),
    "a document of a virtual host": ("POST", "definitions/v", {"queues": [{"name": "new"}]}),
}
"""By what is changed: a request over HTTP."""
DEFINITIONS: Final = (
    d.Vhost(name="v"),
    d.User(name="leaver", password_hash=""),
    d.Exchange(vhost="v", name="e", type="fanout"),
    d.Queue(vhost="v", name="q"),
    d.Binding(vhost="v", source="e", destination="q", destination_type="queue", routing_key=""),
)


async def site_of(directory: Path) -> Site:
    """A node with `DEFINITIONS`."""
    site = await Site.started(directory)
    await site.apply(*(d.Put(entity) for entity in DEFINITIONS))
    return site


@contextmanager
def refusing(site: Site, number: int = errno.ENOSPC) -> Iterator[None]:
    """A disk that takes no definitions: the system gives this error."""

    def append(*_: object, **named: object) -> None:
        error = OSError(number, os.strerror(number))
        raise storage_error(error, "log definitions: cannot be appended to") from error

    with mock.patch.object(site.node._definitions._log, "append", append):
        yield


async def asked(
    site: Site, method: str, path: str, content: dict[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    """Ask over HTTP, as the operator; return the status, and what an error says."""
    site.node.replication = FakeReplication()
    transport = httpx.ASGITransport(operator_app(build_app(site.node)))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        reply = await client.request(method, f"/api/{path}", json=content)
        return reply.status_code, reply.json() if reply.status_code >= 400 else {}


def logged(site: Site) -> list[bytes]:
    """All that a restart would know."""
    definitions = site.node._definitions.definitions
    return sorted(d.encode_change(d.Put(entity)) for entity in definitions.entities())


def held(site: Site) -> list[bytes]:
    """All that the node has in memory."""
    definitions = site.node.broker.definitions
    return sorted(d.encode_change(d.Put(entity)) for entity in definitions.entities())


@pytest.mark.parametrize("what", CHANGES)
async def test_a_change_over_http_that_is_not_logged_is_no_success(directory: Path, what: str) -> None:
    method, path, content = CHANGES[what]
    site = await site_of(directory)
    with refusing(site):
        status, error = await asked(site, method, path, content)
        assert (status, error["error"]) == (503, "unavailable")
        assert "No space left on device" in error["reason"]
        assert site.node.broker.changes
        assert not site.node.failed.is_set()
    # The client tries again, as Retry-After says; what was deleted is not found then.
    assert (await asked(site, method, path, content))[0] < 500
    await site.settle()
    assert logged(site) == held(site)


async def test_a_disk_that_fails_is_named_over_http_and_ends_the_node(directory: Path) -> None:
    site = await site_of(directory)
    with refusing(site, errno.EIO):
        status, error = await asked(site, "PUT", "queues/v/new", {"durable": True})
    assert status == 503
    assert "Input/output error" in error["reason"]
    assert site.node.failed.is_set()


@pytest.mark.parametrize("of_whom", ["this client", "another client"])
async def test_over_amqp_the_answer_waits_for_the_log(directory: Path, of_whom: str) -> None:
    site = await site_of(directory)
    client, other = Client(site), Client(site)
    declaring = client if of_whom == "this client" else other
    with refusing(site):
        declaring.send(commands.Queue.Declare(queue="new", durable=True))
        client.send(commands.Queue.Declare(queue="new", durable=True, passive=True))
        for _ in range(3):
            site.node.engine.flush()
            await site.node.commits.all_durable()
        assert declaring.names() == []
    await site.settle()
    assert set(declaring.names()) == {"Queue.DeclareOk"}


async def test_over_the_stream_protocol_the_answer_waits_for_the_log(directory: Path) -> None:
    site = await site_of(directory)
    await site.apply(
        d.Put(d.Permission(user="leaver", vhost="v", configure=".*", write=".*", read=".*")),
    )
    answered = list[str]()
    server = site.node.stream_server
    with refusing(site):
        server.create_stream("leaver", "v", "s", {})
        server.when_durable(lambda: answered.append("created"))
        server.create_stream("leaver", "v", "s", {})
        server.when_durable(lambda: answered.append("exists"))
        await site.node.commits.all_durable()
        assert answered == []
    await site.settle()
    assert answered == ["created", "exists"]


async def test_messages_over_http_do_not_wait_for_definitions_of_others(directory: Path) -> None:
    site = await site_of(directory)
    await site.publish(2)
    take = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    with refusing(site):
        site.node.broker.apply(d.Put(d.Queue(vhost="v", name="new")))
        assert (await asked(site, "POST", "queues/v/q/get", take))[0] == 200
        assert site.queue().message_count == 1
        assert (await asked(site, "DELETE", "queues/v/q/contents")) == (204, {})
        publish = {"routing_key": "q", "payload": "x", "payload_encoding": "string"}
        transient = {**publish, "properties": {}}
        assert (await asked(site, "POST", "exchanges/v/amq.default/publish", transient))[0] == 200
        persistent = {**publish, "properties": {"delivery_mode": 2}}
        assert (await asked(site, "POST", "exchanges/v/amq.default/publish", persistent))[0] == 200


async def test_a_message_of_a_stream_is_confirmed_once_the_stream_is_logged(directory: Path) -> None:
    """Otherwise a restart would remove the log of a stream that it does not know, with the message."""
    site = await site_of(directory)
    outcomes = list[LeveretError | None]()

    def publish(name: str) -> None:
        entry = len(b"x").to_bytes(4, "big") + b"x"
        batch = StreamBatch(b"", [0], [entry], 1, None)
        batch.done = outcomes.append
        site.node.stream_server.stream("v", name).publish(batch)

    await site.apply(d.Put(d.Queue(vhost="v", name="known", arguments={"x-queue-type": "stream"})))
    with refusing(site):
        site.node.broker.apply(d.Put(d.Queue(vhost="v", name="s", arguments={"x-queue-type": "stream"})))
        publish("s")
        for _ in range(3):
            site.node.engine.flush()
            await site.node.commits.all_durable()
        assert outcomes == []
        publish("known")
        site.node.engine.flush()
        await site.node.commits.all_durable()
        assert outcomes == [None], "of a stream that a restart knows"
    await site.settle()
    assert outcomes == [None, None]


async def test_a_dead_letter_stays_where_it_died_until_its_target_is_logged(directory: Path) -> None:
    site = await site_of(directory)
    to_grave = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    await site.apply(d.Put(d.Queue(vhost="v", name="dying", arguments=to_grave)))
    await site.publish(1, "dying")
    with refusing(site):
        site.node.broker.apply(d.Put(d.Queue(vhost="v", name="grave")))
        site.node.engine.flush()
        queue = site.queue("dying")
        [run] = queue.take(1)[0]
        queue.reject(run.first, 1)
        for _ in range(3):
            site.node.broker.dirty[queue] = None
            site.node.engine.flush()
            await site.node.commits.all_durable()
        assert (queue.message_count, site.queue("grave").message_count) == (1, 1)
    await site.settle()
    await until(lambda: queue.message_count == 0, "the settlement")


async def test_a_recovery_relies_on_no_queue_that_a_restart_would_not_know(directory: Path) -> None:
    site = await site_of(directory)
    node = site.node
    ingest = RecoveryIngest(node.broker, ("v", "new"), node.engine, node.commits)
    safe = list[bool]()
    octets = alike(HEAD, [b"x" * BODY_BYTES]).entries()
    with refusing(site):
        ingest.append("plan", [MessageRun(1, 1, octets)], lambda: safe.append(True))
        for _ in range(3):
            node.engine.flush()
            await node.commits.all_durable()
        assert not safe
        with pytest.raises(StorageError, match="No space left on device"):
            await ingest.all_durable()
    await site.settle()
    assert safe


async def test_a_promise_waits_for_the_last_refused_change_of_its_queue_only(directory: Path) -> None:
    site = await site_of(directory)
    engine, kept = site.node.engine, list[str]()

    def promise(name: str) -> Callable[[], None]:
        return lambda: kept.append(name)

    with refusing(site):
        site.node.broker.apply(d.Put(d.Queue(vhost="v", name="first")))
        engine.flush()
        engine.definitions.once_known({site.queue("first")}, promise("first"))
    with refusing(site):
        engine.definitions.once_known({site.queue("q")}, promise("q"))
        assert kept == ["q"]
    engine.flush()
    with refusing(site):
        site.node.broker.apply(d.Put(d.Queue(vhost="v", name="second")))
        engine.flush()
        engine.definitions.once_known([site.queue("first"), site.queue("second")], promise("both"))
        await site.node.commits.all_durable()
        assert kept == ["q", "first"]
    await site.settle()
    assert kept == ["q", "first", "both"]
