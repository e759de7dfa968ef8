"""Limits on the number of connections, channels and queues of a vhost and of a user.

Limits of a vhost are its runtime parameter `vhost-limits`, named `limits`; limits of a user are part of the user. A
negative limit means no limit, 0 allows nothing (RabbitMQ's rules). The listeners check before they open something:
`check_connection_limits` when a connection opens a vhost, before access to the vhost is checked; `check_channel_limit`
at channel.open. The broker itself calls `check_queue_limit`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, MutableSet, Sized
from typing import Final, Protocol

from leveret.model.definitions import Definitions, Parameter, User
from leveret.model.errors import NotAllowed, PreconditionFailed

VHOST_LIMITS: Final = "vhost-limits"
LIMITS_NAME: Final = "limits"
MAX_CONNECTIONS: Final = "max-connections"
MAX_QUEUES: Final = "max-queues"
MAX_CHANNELS: Final = "max-channels"


class Connection(Protocol):
    """A client's connection as the broker sees it.

    `user` and `vhost` are constant once it is in the broker's connections.
    """

    vhost: str | None
    user: str | None

    @property
    def channels(self) -> Sized:
        """The open channels."""

    def force_close(self, reason: str) -> None:
        """End the connection; the client gets the reason."""


class OtherConnection:
    """A connection of a protocol other than AMQP 0-9-1, without channels.

    It counts, and ends with its user and vhost.
    """

    def __init__(
        self, connections: ConnectionRegistry, user: str, vhost: str, cut: Callable[[str], None]
    ) -> None:
        """Register the connection that `cut(reason)` ends, until it leaves."""
        self.user: str | None = user
        self.vhost: str | None = vhost
        self.channels: dict[int, object] = {}
        self._cut = cut
        self._connections = connections
        connections.add(self)

    def leave(self) -> None:
        """Unregister the connection; may be called again."""
        self._connections.discard(self)

    def force_close(self, reason: str) -> None:
        """See Connection."""
        self._cut(reason)


class ConnectionRegistry(MutableSet[Connection]):
    """Open connections, indexed by vhost and by user."""

    def __init__(self, members: Iterable[Connection] = ()) -> None:
        """Start with `members`."""
        self._all: set[Connection] = set()
        self._by_vhost: dict[str | None, set[Connection]] = {}
        self._by_user: dict[str | None, set[Connection]] = {}
        for member in members:
            self.add(member)

    def __contains__(self, member: object) -> bool:
        """Tell whether it is connected."""
        return member in self._all

    def __iter__(self) -> Iterator[Connection]:
        """All connections, in no order."""
        return iter(self._all)

    def __len__(self) -> int:
        """The number of connections."""
        return len(self._all)

    def add(self, value: Connection) -> None:
        """Register an open connection."""
        self._all.add(value)
        self._by_vhost.setdefault(value.vhost, set()).add(value)
        self._by_user.setdefault(value.user, set()).add(value)

    def discard(self, value: Connection) -> None:
        """Unregister a connection; an unknown one is no error."""
        if value in self._all:
            self._all.remove(value)
            _take_out(self._by_vhost, value.vhost, value)
            _take_out(self._by_user, value.user, value)

    def of_vhost(self, vhost: str) -> Collection[Connection]:
        """The connections to this vhost."""
        return self._by_vhost.get(vhost, ())

    def of_user(self, user: str) -> Collection[Connection]:
        """The connections of this user, to any vhost."""
        return self._by_user.get(user, ())


def _take_out(index: dict[str | None, set[Connection]], name: str | None, member: Connection) -> None:
    members = index[name]
    members.remove(member)
    if not members:
        del index[name]


def vhost_limit(definitions: Definitions, vhost: str, name: str) -> int | None:
    """A vhost's limit, `max-connections` or `max-queues`; None without one."""
    existing = definitions.by_kind["parameters"].get((vhost, VHOST_LIMITS, LIMITS_NAME))
    value = existing.value if isinstance(existing, Parameter) else None
    return _limit(value.get(name) if isinstance(value, dict) else None)


def user_limit(definitions: Definitions, user: str, name: str) -> int | None:
    """A user's limit, `max-connections` or `max-channels`; None without one."""
    existing = definitions.by_kind["users"].get((user,))
    return _limit(existing.limits.get(name)) if isinstance(existing, User) else None


def _limit(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def check_connection_limits(
    definitions: Definitions,
    connections: ConnectionRegistry,
    user: str,
    vhost: str,
    node_limit: int | None = None,
) -> None:
    """Check whether `user` may open one more connection to `vhost`, before it is registered.

    A vhost that does not exist has no limits; `node_limit` is the most connections of the node.

    Raises:
        NotAllowed: in RabbitMQ's words; reply code 530, for the connection.
    """
    if node_limit is not None and len(connections) >= node_limit:
        raise NotAllowed(f"connection refused: node connection limit ({node_limit}) is reached")
    limit = vhost_limit(definitions, vhost, MAX_CONNECTIONS)
    if limit is not None and len(connections.of_vhost(vhost)) >= limit:
        raise NotAllowed(
            f"access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
        )
    limit = user_limit(definitions, user, MAX_CONNECTIONS)
    if limit is not None and len(connections.of_user(user)) >= limit:
        raise NotAllowed(f"connection refused for user '{user}': user connection limit ({limit}) is reached")


def check_channel_limit(
    definitions: Definitions, connections: ConnectionRegistry, user: str, open_channels: int
) -> None:
    """Check whether `user` may open one more channel, on any connection.

    The user's other connections are counted only if there is a limit, and only until it is reached.

    Args:
        definitions: the definitions with the limits.
        connections: the open connections.
        user: the user.
        open_channels: the number of open channels of the user's connection.

    Raises:
        NotAllowed: in RabbitMQ's words; reply code 530, for the connection.
    """
    limit = user_limit(definitions, user, MAX_CHANNELS)
    if limit is None:
        return
    reached = open_channels >= limit
    counted = 0
    for connection in connections.of_user(user):
        if reached:
            break
        counted += len(connection.channels)
        reached = counted >= limit
    if reached:
        raise NotAllowed(
            f"number of channels opened for user '{user}' has reached the maximum allowed user limit of ({limit})"
        )


def check_queue_limit(definitions: Definitions, vhost: str, name: str, queue_count: int) -> None:
    """Check whether the vhost, which has `queue_count` queues, may have one more, called `name`.

    Raises:
        PreconditionFailed: in RabbitMQ's words.
    """
    limit = vhost_limit(definitions, vhost, MAX_QUEUES)
    if limit is not None and queue_count >= limit:
        raise PreconditionFailed(
            f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached"
        )


def check_node_queue_limit(limit: int | None, name: str, queue_count: int) -> None:
    """Check whether the node, which has `queue_count` queues, may have one more, called `name`.

    Raises:
        PreconditionFailed: in RabbitMQ's words.
    """
    if limit is not None and queue_count >= limit:
        raise PreconditionFailed(
            f"cannot declare queue '{name}': queue limit in cluster ({limit}) is reached"
        )
