"""The begin of a connection: start, tune, open; mechanisms, logins and limits, with RabbitMQ's words for refusals."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from pamqp import commands

from leveret.core.broker.actor import Actor
from leveret.core.broker.limits import check_connection_limits
from leveret.model.errors import AuthenticationFailed, NotAllowed, NotFound, Refusal
from leveret.model.served_release import RABBITMQ_VERSION
from leveret.session.amqp091.blocked import need_definitions_lock
from leveret.session.amqp091.connection_base import ConnectionBase
from leveret.session.amqp091.replies import Fault, reply_text
from leveret.session.amqp091.sasl import AMQPLAIN, EXTERNAL, PLAIN, amqplain, plain
from leveret.wire import amqp091 as wire

CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


def start(connection: ConnectionBase) -> commands.Connection.Start:
    """The connection.start method: the server's properties, and the mechanisms.

    Libraries decide by product and version: Celery raises the prefetch of a running consumer only at a RabbitMQ 3.3 to
    3.13, NServiceBus refuses a version below 3.10. So these are RabbitMQ's; `platform` names this product.
    """
    host = connection.host
    properties: dict[str, Any] = {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": host.cluster_name,
        "copyright": "Copyright the Leveret authors",
        "information": "Licensed under the Apache License 2.0",
        "platform": f"Leveret {host.version}",
        "product": "RabbitMQ",
        "version": RABBITMQ_VERSION,
    }
    return commands.Connection.Start(
        server_properties=properties, mechanisms=" ".join(_offered(connection)), locales="en_US"
    )


def _offered(connection: ConnectionBase) -> list[str]:
    """The offered mechanisms; EXTERNAL for every TLS client, so that one without a certificate gets the reason."""
    configured = connection.host.limits.auth_mechanisms
    return [each for each in configured if each != EXTERNAL or connection.tls is not None]


def log_in(connection: ConnectionBase, method: commands.Connection.StartOk) -> str:
    """Check the client's answer to start; return the user's name.

    Raises:
        AuthenticationFailed: no such user, a wrong password, or a forbidden address. Fault: the answer is malformed.
    """
    if method.mechanism not in _offered(connection):
        raise Fault(503, f"unknown authentication mechanism '{method.mechanism}'")
    response: Any = method.response
    octets = response if isinstance(response, bytes) else str(response or "").encode()
    if method.mechanism == EXTERNAL:
        name = connection.tls.login_name(connection.host.certificate_login) if connection.tls else None
        if name is None:
            raise AuthenticationFailed("the connection presented no certificate that names a user")
        return connection.host.authenticate_external(name, connection.from_loopback)
    username, password = {PLAIN: plain, AMQPLAIN: amqplain}[method.mechanism](octets)
    return connection.host.authenticate(username, password, connection.from_loopback)


def refusal(mechanism: str) -> bytes:
    """The close method for a refused login, for clients that understand it."""
    text = (
        f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
    )
    return wire.close_method(0, 403, reply_text(403, text), 0, 0)


def tune(connection: ConnectionBase, method: commands.Connection.TuneOk) -> None:
    """Take the limits and the heartbeat interval that the client chose.

    Raises:
        NotAllowed: a value is out of bounds.
    """
    limits = connection.host.limits
    _check("frame_max", method.frame_max, wire.FRAME_MIN_BYTES, limits.frame_max_bytes)
    _check("channel_max", method.channel_max, 1, limits.channel_max)
    connection.frame_max_bytes = method.frame_max
    connection.channel_max = method.channel_max
    connection.heartbeat_ms = method.heartbeat * 1000


def _check(name: str, chosen: int, least: int, most: int) -> None:
    if 0 < chosen < least:
        raise NotAllowed(f"negotiated {name} = {chosen} is lower than the minimum allowed value ({least})")
    if not 0 < chosen <= most:
        shown = f"{chosen}" if chosen else "0 (no limit)"
        raise NotAllowed(f"negotiated {name} = {shown} is higher than the maximum allowed value ({most})")


def enter(connection: ConnectionBase, vhost: str) -> None:
    """Let the user into a vhost.

    Raises:
        NotAllowed: no such vhost, no permission, or too many connections.
    """
    user, host = connection.user or "", connection.host
    check_connection_limits(
        host.broker.definitions, host.broker.connections, user, vhost, host.limits.connection_max
    )
    try:
        host.open_vhost(user, vhost)
    except NotFound:
        raise NotAllowed(f"vhost {vhost} not found") from None
    except Refusal:
        raise NotAllowed(f"access to vhost '{vhost}' refused for user '{user}'") from None
    connection.vhost = vhost
    connection.actor = Actor(host.broker, user, vhost, owner=connection)
    connection.actor.before_change = partial(need_definitions_lock, host.broker)
