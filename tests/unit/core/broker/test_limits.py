"""core.broker.limits: how many connections, channels and queues there may be."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.broker.broker import Broker
from leveret.core.broker.limits import ConnectionRegistry, check_channel_limit, check_connection_limits
from leveret.model import definitions as d
from leveret.model.errors import NotAllowed, PreconditionFailed


class Client:
    """A connection that counts."""

    def __init__(self, user: str, vhost: str, channels: int = 0) -> None:
        self.user: str | None = user
        self.vhost: str | None = vhost
        self.channels = range(channels)

    def force_close(self, reason: str) -> None:
        raise AssertionError(reason)


def broker(*connections: Client, user: dict[str, int] | None = None, **vhost: int) -> Broker:
    made = Broker(lambda queue, offset: [])
    made.apply(d.Put(d.Vhost(name="v")))
    made.apply(d.Put(d.User(name="u", password_hash="", limits=user or {})))
    value = {name.replace("_", "-"): limit for name, limit in vhost.items()}
    made.apply(d.Put(d.Parameter(vhost="v", component="vhost-limits", name="limits", value=value)))
    made.connections |= set(connections)
    return made


def connection_refusal(one: Broker) -> str:
    with pytest.raises(NotAllowed) as caught:
        check_connection_limits(one.definitions, one.connections, "u", "v")
    return str(caught.value)


def test_connections_are_found_by_vhost_and_by_user() -> None:
    first, second = Client("u", "v"), Client("w", "v")
    both = ConnectionRegistry([first, second])
    assert (set(both.of_vhost("v")), set(both.of_user("u"))) == ({first, second}, {first})
    both.discard(first)
    both.discard(first)
    assert (set(both), set(both.of_vhost("v")), set(both.of_user("u"))) == ({second}, {second}, set())


@pytest.mark.parametrize("limit", [-1, 2])
def test_a_vhost_takes_connections_up_to_its_limit(limit: int) -> None:
    one = broker(Client("u", "v"), max_connections=limit)
    check_connection_limits(one.definitions, one.connections, "u", "v")


@pytest.mark.parametrize("limit", [0, 1])
def test_a_vhost_refuses_one_connection_too_many(limit: int) -> None:
    assert connection_refusal(broker(Client("x", "v"), max_connections=limit)) == (
        f"access to vhost 'v' refused for user 'u': connection limit ({limit}) is reached"
    )


def test_a_users_connections_count_wherever_they_are() -> None:
    one = broker(Client("u", "elsewhere"), user={"max-connections": 1})
    text = "connection refused for user 'u': user connection limit (1) is reached"
    assert connection_refusal(one) == text
    check_connection_limits(one.definitions, one.connections, "other", "v")


def test_a_users_channels_count_on_all_connections() -> None:
    clients = Client("u", "v", 2), Client("u", "elsewhere", 1), Client("x", "v", 9)
    for one in (broker(*clients, user={"max-channels": 4}), broker(*clients)):
        check_channel_limit(one.definitions, one.connections, "u", 2)
    full = broker(*clients, user={"max-channels": 3})
    with pytest.raises(NotAllowed) as caught:
        check_channel_limit(full.definitions, full.connections, "u", 2)
    text = "number of channels opened for user 'u' has reached the maximum allowed user limit of (3)"
    assert str(caught.value) == text


def test_a_vhost_takes_new_queues_up_to_its_limit() -> None:
    one = broker(max_queues=1)
    one.declare_queue(d.Queue(name="q", vhost="v"))
    one.declare_queue(d.Queue(name="q", vhost="v"))
    text = r"^cannot declare queue 'r': queue limit in vhost 'v' \(1\) is reached$"
    with pytest.raises(PreconditionFailed, match=text):
        one.declare_queue(d.Queue(name="r", vhost="v"), object())


def test_a_limit_lowered_below_what_is_there_loses_nothing_at_a_restart() -> None:
    one = broker(max_queues=5)
    for name in "abc":
        one.declare_queue(d.Queue(name=name, vhost="v"))
    limit: dict[str, Any] = {"max-queues": 1}
    one.apply(d.Put(d.Parameter(vhost="v", component="vhost-limits", name="limits", value=limit)))
    again = Broker(lambda queue, offset: [])
    for entity in one.definitions.entities():
        again.apply(d.Put(entity))
    assert len(again.queues) == 3


def test_a_node_takes_queues_of_all_vhosts_up_to_its_limit() -> None:
    made = Broker(lambda queue, offset: [], queue_max=2)
    for vhost in ("v", "w"):
        made.apply(d.Put(d.Vhost(name=vhost)))
        made.declare_queue(d.Queue(name="q", vhost=vhost))
    made.declare_queue(d.Queue(name="q", vhost="v"))
    with pytest.raises(PreconditionFailed) as caught:
        made.declare_queue(d.Queue(name="r", vhost="v"))
    assert str(caught.value) == "cannot declare queue 'r': queue limit in cluster (2) is reached"
