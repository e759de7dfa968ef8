"""runtime.clients.stream_server: what the node answers to the stream protocol."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from leveret.config.kinds import Address
from leveret.core.queues.stream import StreamBatch
from leveret.model import definitions as d
from leveret.model.errors import AccessRefused, LeveretError, NotFound, PreconditionFailed
from leveret.runtime.clients.stream_server import StreamServer
from leveret.testing.sites.stream_host import served_log_contract
from leveret.wire.record import (
    EPOCH_PREFIX,
    FINGERPRINT_PREFIX,
    TRANSFERRED_FINGERPRINT_PREFIX,
    TRANSFERRED_PREFIX,
)
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import Site


def on_a_node(script: Any) -> None:
    """Run a script on the stream door of a node with a vhost `v`, where guest may do all."""

    async def run() -> None:
        with scratch() as directory:
            site = await Site.started(directory)
            everything = d.Permission(user="guest", vhost="v", configure=".*", write=".*", read=".*")
            guest = d.User(name="guest", password_hash="")
            for entity in (d.Vhost(name="v"), guest, everything):
                site.node.broker.apply(d.Put(entity))
            await script(site, site.node.stream_server)
            await site.node.commit()
            await site.stop()

    asyncio.run(run())


def batch(*bodies: bytes) -> StreamBatch:
    entries = [len(body).to_bytes(4, "big") + body for body in bodies]
    return StreamBatch(b"", range(len(bodies)), entries, len(bodies), None)


@pytest.mark.parametrize(
    ("ip", "host"),
    [("0.0.0.0", "machine"), ("::", "machine"), ("10.0.0.1", "10.0.0.1"), ("fd00::1", "fd00::1")],
)
def test_clients_are_sent_to_an_address_at_which_they_reach_the_node(
    ip: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 0.0.0.0 a client reaches its own machine."""
    monkeypatch.setattr(socket, "gethostname", lambda: "machine")

    async def script(site: Site, server: StreamServer) -> None:
        server.listening(Address(ip, 5552))
        server.listening_tls(Address(ip, 5551))
        assert server.create_stream("guest", "v", "s", {})
        assert server.places_of("v", "s", tls=False).leader == (host, 5552)
        assert server.places_of("v", "s", tls=True).leader == (host, 5551)

    on_a_node(script)


def test_a_partition_that_an_application_bound_has_some_place_whatever_its_arguments() -> None:
    async def script(site: Site, server: StreamServer) -> None:
        partitions = {"s-0": "0", "s-1": "1"}
        assert server.create_super_stream("guest", "v", "s", partitions, {})
        assert server.create_stream("guest", "v", "other", {})
        binding = d.Binding(
            vhost="v",
            source="s",
            destination="other",
            destination_type="queue",
            routing_key="x",
            arguments={"x-stream-partition-order": "first"},
        )
        site.node.broker.apply(d.Put(binding))
        assert sorted(server.partitions("v", "s")) == ["other", "s-0", "s-1"]
        server.delete_super_stream("guest", "v", "s")

    on_a_node(script)


def test_a_stream_is_served_as_the_listener_relies_on() -> None:
    async def script(site: Site, server: StreamServer) -> None:
        assert server.create_stream("guest", "v", "s", {"max-age": "7D"})
        assert not server.create_stream("guest", "v", "s", {"max-age": "7D"})
        handle = server.stream("v", "s")
        outcomes: list[LeveretError | None] = []
        for number in range(4):
            each = batch(b"%d" % number, b"x")
            each.done = outcomes.append
            handle.publish(each)
            await site.node.commit()
        assert outcomes == [None] * 4
        served_log_contract(handle.log)
        server.delete_stream("guest", "v", "s")
        late = batch(b"late")
        late.done = outcomes.append
        handle.publish(late)
        assert isinstance(outcomes[-1], NotFound)
        await site.node.commit()
        assert handle.log.is_closed

    on_a_node(script)


def test_only_streams_are_streams_and_arguments_are_checked() -> None:
    async def script(site: Site, server: StreamServer) -> None:
        site.node.broker.declare_queue(d.Queue(name="classic", vhost="v"))
        with pytest.raises(NotFound, match="is not a stream"):
            server.stream("v", "classic")
        with pytest.raises(NotFound):
            server.stream("v", "missing")
        with pytest.raises(PreconditionFailed):
            server.create_stream("guest", "v", "classic", {})
        with pytest.raises(PreconditionFailed, match="whole number"):
            server.create_stream("guest", "v", "s", {"max-length-bytes": "many"})
        for name in ("max-length-bytes", "max-age"):
            # Python converts no text of so many digits to a number.
            with pytest.raises(PreconditionFailed):
                server.create_stream("guest", "v", "s", {name: "9" * 5000 + "Y" * (name == "max-age")})
        for prefix in (TRANSFERRED_PREFIX, TRANSFERRED_FINGERPRINT_PREFIX, EPOCH_PREFIX, FINGERPRINT_PREFIX):
            assert server.query_offset("v", prefix + "9" * 5000) is None
        with pytest.raises(PreconditionFailed):
            server.create_super_stream("guest", "v", "super", {"p": "0"}, {"max-age": "nonsense"})
        assert ("v", "p") not in site.node.broker.queues

    on_a_node(script)


def test_permissions_are_those_of_the_stream_s_name() -> None:
    async def script(site: Site, server: StreamServer) -> None:
        broker = site.node.broker
        broker.apply(d.Put(d.User(name="u", password_hash="")))
        broker.apply(d.Put(d.Permission(user="u", vhost="v", configure="", write="^w", read="^r")))
        server.check("u", "v", "write", "w1")
        server.check("u", "v", "read", "r1")
        with pytest.raises(AccessRefused, match="access to queue 'w1' in vhost 'v' refused for user 'u'"):
            server.check("u", "v", "read", "w1")
        with pytest.raises(AccessRefused):
            server.check("u", "v", "configure", "w1")

    on_a_node(script)
