"""What the node answers to its sessions' questions: who may log in, enter, read, hand in."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from leveret.core.access import check_password, is_allowed, permission_of
from leveret.core.broker import Broker
from leveret.core.queue import Head, Queue
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.definitions import User
from leveret.model.errors import AccessRefused, AuthenticationFailed, NotFound, StorageError
from leveret.runtime.commit import GroupCommit
from leveret.runtime.engine import Engine
from leveret.runtime.outgoing import Collector, OutgoingLog
from leveret.session.host import Sender
from leveret.session.stored import Heads
from leveret.wire.record import OUTGOING_STREAM


class Authority:
    """Logins and access, for every door of the node.

    Attributes:
        internal: passwords of users that exist only in memory, for this node's own jobs.
    """

    def __init__(self, broker: Broker, loopback_users: frozenset[str]) -> None:
        """`loopback_users` may log in from this machine only."""
        self.broker = broker
        self.internal: dict[str, str] = {}
        self._loopback_users = loopback_users

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        """Check credentials; return the user's name.

        Raises:
            AuthenticationFailed: in RabbitMQ's words; does not tell which of the two was wrong.
        """
        if from_loopback and self.internal.get(username) == password and password:
            return username
        user = self.broker.definitions.by_kind["users"].get((username,))
        if not isinstance(user, User) or not check_password(user, password):
            raise AuthenticationFailed(f"user '{username}' - invalid credentials")
        if username in self._loopback_users and not from_loopback:
            raise AuthenticationFailed(f"user '{username}' can only connect via localhost")
        return username

    def open_vhost(self, user: str, vhost: str) -> None:
        """Let the user into the vhost.

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
        """A user for a job of this node: known in memory, from loopback, while the context lasts."""
        name = f"leveret-internal-{purpose}-{unique_id()}"
        self.internal[name] = unique_id() + unique_id()
        try:
            yield name, self.internal[name]
        finally:
            del self.internal[name]


class AmqpHost:
    """session.host.Host for AMQP 0-9-1."""

    def __init__(
        self,
        authority: Authority,
        outbox: list[Sender],
        append_now: Callable[[Queue], None],
        *,
        cluster_name: str,
        node_name: str,
        version: str,
        frame_max_bytes: int,
        channel_max: int,
        heartbeat_s: int,
    ) -> None:
        """Take what connections are offered."""
        self.broker = authority.broker
        self.outbox = outbox
        self.cluster_name = cluster_name
        self.node_name = node_name
        self.version = version
        self.frame_max_bytes = frame_max_bytes
        self.channel_max = channel_max
        self.heartbeat_s = heartbeat_s
        self.authenticate = authority.authenticate
        self.open_vhost = authority.open_vhost
        self.unique_id = unique_id
        self.append_now = append_now


class SchemaHost:
    """session.amqp10.Amqp10Host: the schema link."""

    def __init__(self, authority: Authority, container_id: str, serve: Callable[[str, bytes], bytes]) -> None:
        """`serve` answers (user, request) with a reply."""
        self.container_id = container_id
        self.authenticate = authority.authenticate
        self.open_vhost = authority.open_vhost
        self.schema_request = serve


class StreamDoor:
    """runtime.stream_host.StreamHost: outgoing logs out, recovered messages in."""

    def __init__(
        self,
        authority: Authority,
        collector: Collector,
        engine: Engine,
        commit: GroupCommit,
        *,
        node_name: str,
    ) -> None:
        """`advertised_port` is set once the listener has one."""
        self.node_name = node_name
        self.advertised_host = "127.0.0.1"
        self.advertised_port = 0
        self._authority = authority
        self._collector = collector
        self._engine = engine
        self._commit = commit
        self.authenticate = authority.authenticate
        self.open_vhost = authority.open_vhost

    def outgoing_log(self, user: str, vhost: str) -> OutgoingLog:
        """See StreamHost."""
        log = self._collector.logs.get(vhost)
        if log is None:
            raise NotFound(f"vhost '{vhost}' has no outgoing log: it is not tagged standby_replication")
        if not self._authority.may_read(user, vhost, OUTGOING_STREAM):
            raise AccessRefused(
                f"access to queue '{OUTGOING_STREAM}' in vhost '{vhost}' refused for user '{user}'"
            )
        return log

    def recovery_queue(self, user: str, vhost: str, queue: str) -> RecoveryIngest:
        """See StreamHost: for this node's own recovery jobs and for administrators."""
        broker = self._authority.broker
        held = broker.definitions.by_kind["users"].get((user,))
        if user not in self._authority.internal and "administrator" not in getattr(held, "tags", ()):
            raise AccessRefused(f"recovery into queue '{queue}' in vhost '{vhost}' refused for user '{user}'")
        if (vhost, queue) not in broker.queues:
            # The schema sync had not brought it yet; without a queue its messages could not come back.
            broker.declare_queue(QueueDefinition(name=queue, vhost=vhost))
            self._engine.touch()
        return RecoveryIngest(broker, broker.queue(vhost, queue), self._engine, self._commit)

    def store_offset(self, vhost: str, reference: str, offset: int) -> None:
        """See StreamHost."""
        log = self._collector.logs.get(vhost)
        if log is not None:
            log.offsets[reference] = offset

    def query_offset(self, vhost: str, reference: str) -> int | None:
        """See StreamHost."""
        log = self._collector.logs.get(vhost)
        return log.offsets.get(reference) if log is not None else None


class RecoveryIngest:
    """runtime.stream_host.RecoveryQueue: stored messages into a queue, each once.

    The last publishing id of a reference is logged in the trailer of the very chunk that holds its
    message, so after any crash the two agree: what is there is known to be there.
    """

    def __init__(self, broker: Broker, queue: Queue, engine: Engine, commit: GroupCommit) -> None:
        """Hand in to `queue`."""
        self._broker = broker
        self._queue = queue
        self._engine = engine
        self._commit = commit
        self._heads = Heads()

    def last_sequence(self, reference: str) -> int:
        """See RecoveryQueue."""
        return self._queue.sequences.get(reference.encode(), 0)

    def append(self, reference: str, entries: list[tuple[int, bytes]], done: Callable[[], None]) -> None:
        """See RecoveryQueue."""
        queue = self._broker.queue(*self._queue.key)
        name = reference.encode()
        last = queue.sequences.get(name, 0)
        new = [(sequence, *self._heads.of_entry(entry)) for sequence, entry in entries if sequence > last]
        if queue.gathered:
            # Others' messages first, by themselves: ours and their sequence must share one chunk.
            self._engine.append_now(queue)
        runs: list[tuple[Head, list[bytes]]] = []
        for sequence, head, body in new:
            if sequence > last:
                last = sequence
                if runs and runs[-1][0] is head:
                    runs[-1][1].append(body)
                else:
                    runs.append((head, [body]))
        for head, bodies in runs:
            queue.gather(head, bodies)
        if last > queue.sequences.get(name, 0):
            queue.advance_sequence(name, last)
            self._broker.dirty[queue] = None
            self._engine.flush()
            if queue.sequences.get(name, 0) < last:
                raise StorageError(
                    f"queue '{queue.key[1]}': the disk refused recovered messages; see the node's log"
                )
        self._commit.when_durable(done)
        self._commit.begin()


def unique_id() -> str:
    """22 characters, 128 random bits."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
