"""The node's answers to its sessions: logins, permissions to enter a vhost, reads of logs, appends."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import leveret
from leveret.config import Config
from leveret.core.broker.access import check_password, is_allowed, permission_of
from leveret.core.broker.alarms import Alarms
from leveret.core.broker.broker import Broker
from leveret.core.broker.limits import check_connection_limits
from leveret.model.definitions import User
from leveret.model.errors import AccessRefused, AuthenticationFailed
from leveret.runtime.clients import connection_log
from leveret.runtime.logs.engine import Engine
from leveret.session.amqp091.remote_queues import Leaders
from leveret.session.certificate import LoginRule
from leveret.session.host import Limits


class Authority:
    """Logins and access, for every listener of the node.

    Attributes:
        internal: the passwords of users that exist only in memory, for this node's own jobs.
    """

    def __init__(self, broker: Broker, loopback_users: frozenset[str]) -> None:
        """`loopback_users` may log in from this machine only."""
        self.broker = broker
        self.internal: dict[str, str] = {}
        self._loopback_users = loopback_users

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        """Check credentials; return the user's name.

        Raises:
            AuthenticationFailed: in RabbitMQ's words, which do not say whether user or password is wrong.
        """
        if from_loopback and self.internal.get(username) == password and password:
            return username
        user = self.broker.definitions.by_kind["users"].get((username,))
        if not isinstance(user, User) or not check_password(user, password):
            connection_log.login_refused(username, "invalid credentials")
            raise AuthenticationFailed(f"user '{username}' - invalid credentials")
        return self._from_here(username, from_loopback)

    def authenticate_external(self, username: str, from_loopback: bool) -> str:
        """Log in the user whose name a verified certificate has; return the name.

        Raises:
            AuthenticationFailed: in RabbitMQ's words.
        """
        if not isinstance(self.broker.definitions.by_kind["users"].get((username,)), User):
            connection_log.login_refused(username, "no user of the certificate's name")
            raise AuthenticationFailed(f"user '{username}' - invalid credentials")
        return self._from_here(username, from_loopback)

    def over(self, protocol: str) -> Login:
        """Logins over one protocol, by RabbitMQ's name of the protocol."""
        return Login(self, protocol)

    def _from_here(self, username: str, from_loopback: bool) -> str:
        if username in self._loopback_users and not from_loopback:
            connection_log.login_refused(username, "can only connect via localhost")
            raise AuthenticationFailed(f"user '{username}' can only connect via localhost")
        return username

    def open_vhost(self, user: str, vhost: str) -> None:
        """Check that the user may enter the vhost.

        Raises:
            NotFound: no such vhost. AccessRefused: no permissions in it.
        """
        self.broker.topology(vhost)
        if user not in self.internal and permission_of(self.broker.definitions, user, vhost) is None:
            raise AccessRefused(f"access to vhost '{vhost}' refused for user '{user}'")

    def may_read(self, user: str, vhost: str, name: str) -> bool:
        """Whether the user may read from the queue or stream `name`."""
        return user in self.internal or is_allowed(
            permission_of(self.broker.definitions, user, vhost), "read", name
        )

    @contextmanager
    def internal_user(self, purpose: str) -> Iterator[tuple[str, str]]:
        """Make a user for a job of this node: in memory only, from loopback only, for the time of the context."""
        name = f"leveret-internal-{purpose}-{unique_id()}"
        self.internal[name] = unique_id() + unique_id()
        self.broker.own_users.add(name)
        try:
            yield name, self.internal[name]
        finally:
            del self.internal[name]
            self.broker.own_users.discard(name)


class Login:
    """Logins of clients of one protocol; attempts are counted, except those of the node's own jobs."""

    def __init__(self, authority: Authority, protocol: str) -> None:
        """Pass attempts to the authority."""
        self._authority = authority
        self._protocol = protocol

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        """See Authority."""
        with self._counted(username):
            return self._authority.authenticate(username, password, from_loopback)

    def authenticate_external(self, username: str, from_loopback: bool) -> str:
        """See Authority."""
        with self._counted(username):
            return self._authority.authenticate_external(username, from_loopback)

    @contextmanager
    def _counted(self, username: str) -> Iterator[None]:
        logins = self._authority.broker.logins
        try:
            yield
        except AuthenticationFailed:
            logins.count(self._protocol, succeeded=False)
            raise
        if username not in self._authority.internal:
            logins.count(self._protocol, succeeded=True)


class AmqpHost:
    """session.host.SessionHost for AMQP 0-9-1."""

    def __init__(
        self,
        authority: Authority,
        engine: Engine,
        alarms: Alarms,
        config: Config,
    ) -> None:
        """Take the offers and limits for connections from the settings."""
        self.leaders: Leaders | None = None
        self.broker = authority.broker
        self.outbox = engine.outbox
        self.append_now = engine.append_now
        self.waits_for_nodes = engine.waits_for_nodes
        self.alarms = alarms
        self.cluster_name = config.cluster_name
        self.node_name = config.node_name
        self.version = leveret.__version__
        self.limits: Limits = config.amqp
        self.certificate_login: LoginRule = config.certificate_login
        login = authority.over("amqp091")
        self.authenticate = login.authenticate
        self.authenticate_external = login.authenticate_external
        self.open_vhost = authority.open_vhost
        self.clock_ms = engine.clock_ms
        self.unique_id = unique_id
        self.channel_failed = connection_log.channel_failed
        self.replies_dropped = connection_log.replies_dropped


class SchemaHost:
    """session.amqp10.server.Amqp10Host: the schema link."""

    def __init__(
        self,
        authority: Authority,
        container_id: str,
        is_ready: Callable[[], bool],
        serve: Callable[[str, bytes], bytes],
        state: Callable[[], bytes],
        connection_max: int | None = None,
    ) -> None:
        """`is_ready` tells whether an answer is a short step; `serve` answers (user, request) with a reply.

        `state` is a digest of the present answer.
        """
        self.container_id = container_id
        self.authenticate = authority.over("amqp10").authenticate
        self.schema_is_ready = is_ready
        self.schema_request = serve
        self.schema_state = state
        self._authority = authority
        self._connection_max = connection_max

    def open_vhost(self, user: str, vhost: str) -> None:
        """Check that the user may enter the vhost.

        Raises:
            NotAllowed: too many connections. NotFound, AccessRefused: see Authority.
        """
        broker = self._authority.broker
        check_connection_limits(broker.definitions, broker.connections, user, vhost, self._connection_max)
        self._authority.open_vhost(user, vhost)


def unique_id() -> str:
    """22 characters, 128 random bits."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
