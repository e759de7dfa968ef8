"""Log lines about clients' connections, in one place, so that all listeners use the same words.

    connection_accepted name="127.0.0.1:40312 -> 127.0.0.1:5672" protocol=amqp
    login_refused user=app reason="invalid credentials"
    connection_authenticated name=... user=app vhost=/
    channel_closed name=... user=app channel=1 operation=queue.declare reason="PRECONDITION_FAILED - ..."
    direct_replies_dropped name=... user=app reason="the client does not read them"
    connection_closed name=... user=app vhost=/ reason=client_closed

Regular events have the level `info`, failures `warning`. The setting `log.connection.level` applies to these lines.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


def accepted(name: str, protocol: str) -> None:
    """A peer connected; `name` is both ends."""
    logger.info("connection_accepted name=%s protocol=%s", name, protocol)


def authenticated(name: str, user: str, vhost: str) -> None:
    """A client logged in and was admitted to a vhost."""
    logger.info("connection_authenticated name=%s user=%s vhost=%s", name, user, vhost)


def login_refused(user: str, reason: str) -> None:
    """Credentials were wrong, or not allowed from the client's address; the client does not learn which."""
    logger.warning("login_refused user=%s reason=%s", user, reason)


def channel_failed(name: str, user: str, number: int, operation: str, text: str) -> None:
    """The node closed a channel because of an operation of its client."""
    logger.warning(
        "channel_closed name=%s user=%s channel=%d operation=%s reason=%s",
        name,
        user,
        number,
        operation,
        text,
    )


def replies_dropped(name: str, user: str) -> None:
    """Replies to `amq.rabbitmq.reply-to` of a client are dropped, until it reads."""
    logger.warning("direct_replies_dropped name=%s user=%s reason=the client does not read them", name, user)


def closed(name: str, user: str, vhost: str, reason: str, *, is_trouble: bool = False) -> None:
    """A connection ended; `user` is empty if it had not been authenticated."""
    level = logging.WARNING if is_trouble else logging.INFO
    if user:
        logger.log(level, "connection_closed name=%s user=%s vhost=%s reason=%s", name, user, vhost, reason)
    else:
        logger.log(level, "connection_closed name=%s reason=%s", name, reason or "not_authenticated")
