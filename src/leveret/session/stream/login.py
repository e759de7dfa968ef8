"""The begin of a stream session: mechanisms, login, and the advertised address."""

from __future__ import annotations

from leveret.model.errors import LeveretError, Refusal
from leveret.session.amqp091.sasl import AMQPLAIN, EXTERNAL, PLAIN, amqplain
from leveret.session.stream.session import StreamSession
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code


def offered(session: StreamSession) -> list[str]:
    """The mechanisms; EXTERNAL for TLS clients only."""
    return [each for each in session.authority.mechanisms if each != EXTERNAL or session.tls is not None]


def log_in(session: StreamSession, command: wire.SaslAuthenticate) -> tuple[Code, str]:
    """Log the peer in; return (OK, the user's name) or (the code, the reason)."""
    if command.mechanism not in offered(session):
        return Code.SASL_MECHANISM_UNSUPPORTED, f"mechanism {command.mechanism} is not offered"
    session.mechanism = command.mechanism
    try:
        if command.mechanism == EXTERNAL and session.tls is not None:
            return Code.OK, session.authority.external_user(session.tls, session.from_loopback)
        username, password = _credentials(command)
    except Refusal as error:
        return Code.AUTHENTICATION_FAILURE, str(error)
    except LeveretError as error:
        return Code.SASL_ERROR, str(error)
    try:
        return Code.OK, session.authority.authenticate(username, password, session.from_loopback)
    except Refusal as error:
        return Code.AUTHENTICATION_FAILURE, str(error)


def _credentials(command: wire.SaslAuthenticate) -> tuple[str, str]:
    """Raises LeveretError: the response is malformed."""
    if command.mechanism == AMQPLAIN:
        return amqplain(command.data)
    identity, *proof = command.data.split(b"\0")
    if identity or len(proof) != 2:
        raise LeveretError(f"response to {PLAIN} is not an empty identity, user and password")
    # Octets that are not UTF-8 are wrong credentials, as at RabbitMQ's stream listener.
    username, password = (each.decode(errors="replace") for each in proof)
    return username, password


def place(session: StreamSession) -> tuple[str, int]:
    """Host and port at which the peer, and others that connect as it did, find this node."""
    authority = session.authority
    if session.tls is not None:
        return authority.advertised_tls_host, authority.advertised_tls_port
    return authority.advertised_host, authority.advertised_port
