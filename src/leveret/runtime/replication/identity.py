"""The identity and history of a node in replication: stored in `replication.json`, which is never replicated.

**Epochs.** Every promotion raises the epoch, and each chunk that is appended from then on carries it. A
leader that receives a higher epoch than its own has been replaced (`seen_epoch`): it serves no client any more,
not even after a restart, until it follows or is promoted itself. All of this is on disk before any action
relies on it.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from leveret.model.errors import StorageError
from leveret.runtime.link.credentials import NodeCredentials
from leveret.session.link_handshake import (
    FORMER_LEADERS_MAX,
    FollowerHandshake,
    HandshakeMessage,
    Leadership,
)
from leveret.storage.secret_file import Secret
from leveret.storage.state_file import StateFile
from leveret.storage.tree import STARTS_BITS

FILE: Final = "replication.json"
_NODE_ID_BYTES: Final = 12


class LinkEnd(NamedTuple):
    """This node, as its followers and its leader see it over a link.

    Attributes:
        secret: the shared secret.
        identity: the node's identity and history.
        name: such as `rabbit@host`.
        own_uri: returns the address for followers; empty without a listener.
        tls: makes a context for a `tls://` leader.
        cluster: returns the id of the cluster whose node has, or had, these data; empty outside a cluster.
    """

    secret: Secret
    identity: IdentityFile
    name: str
    own_uri: Callable[[], str]
    tls: Callable[[], ssl.SSLContext | None]
    cluster: Callable[[], str] = str

    @property
    def credentials(self) -> NodeCredentials:
        """What this node proves."""
        return NodeCredentials(self.secret, self.identity.identity.node_id, self.name)

    def prove(self, handshake: FollowerHandshake, hello: HandshakeMessage) -> HandshakeMessage:
        """Return the answer, with this node's leadership, to the hello of the node that it has connected to."""
        identity = self.identity.identity
        return handshake.answer_hello(
            hello,
            leadership=identity.leadership,
            followed_epoch=identity.followed_epoch,
            led=identity.led,
            uri=self.own_uri(),
        )


class StoredLogs(NamedTuple):
    """The logs on a node's disk, compared with its definitions.

    Attributes:
        missing: the epochs of the queues whose logs are recorded in the definitions, and missing on disk.
        definitions_end: the offset up to which the definitions are on disk.
    """

    missing: frozenset[int]
    definitions_end: int


class NodeIdentity(msgspec.Struct, kw_only=True):
    """The stored identity and history.

    Attributes:
        node_id: a random id from the first start.
        role: the last role of the node.
        epoch: the epoch of its data: its own as a leader, or its leader's.
        leader_id: the leader in that epoch; empty if unknown.
        seen_epoch, seen_leader_id: the latest leadership that this node knows.
        followed_epoch: the epoch of the last leader with which it finished a join; 0 for none.
        followed_leader_id: that leader; empty if an older version did not record it.
        starts: the number of this node's starts as leader in its epoch.
        rewriting: whether logs were being truncated or begun anew for a leader, or a damaged log was quarantined, and
            that has not ended: the node may lack promised changes, and must not lead.
        led: whether it has led since that join, so that it may have records that no other node has.
        replaced_by: the URI of the leader with `seen_epoch`, if known.
        had_followers: whether a follower finished a join since this node leads in its epoch: it may have been promoted.
        followers: the URIs of these followers, the last one first; this node asks them when it starts.
        former_leaders: the URIs of present and earlier leaders, the last one first; this node notifies them when it
            leads.
        missing_logs: the epochs of the queues whose logs this node lacked when it last had all records of its leader,
            or began to lead; None: an older version did not record them.
        definitions_end: the offset up to which it had the definitions then.
        cluster: the id of the cluster whose node it follows, or followed before it led; empty outside a cluster.
    """

    node_id: str = ""
    role: Literal["", "leader", "follower"] = ""
    epoch: int = 0
    leader_id: str = ""
    starts: int = 0
    rewriting: bool = False
    seen_epoch: int = 0
    seen_leader_id: str = ""
    followed_epoch: int = 0
    followed_leader_id: str = ""
    led: bool = False
    replaced_by: str = ""
    had_followers: bool = False
    followers: list[str] = []
    former_leaders: list[str] = []
    missing_logs: list[int] | None = None
    definitions_end: int = 0
    cluster: str = ""

    @property
    def stamp(self) -> int:
        """The epoch of newly appended chunks.

        A leader may lose sent chunks in a power failure and start again in its epoch. It must not write chunks that
        look like the lost ones; see core.replication.join.
        """
        return self.epoch << STARTS_BITS | self.starts

    @property
    def leadership(self) -> Leadership:
        """The leadership of its data."""
        return Leadership(self.epoch, self.leader_id)

    @property
    def seen(self) -> Leadership:
        """The latest leadership that it knows."""
        return max(Leadership(self.seen_epoch, self.seen_leader_id), self.leadership)

    def see(self, leadership: Leadership) -> None:
        """Note a leadership that this node has learned of."""
        self.seen_epoch, self.seen_leader_id = max(self.seen, leadership)

    @property
    def is_fenced(self) -> bool:
        """Whether another node was promoted after this one."""
        return (self.seen_epoch, self.seen_leader_id) > (self.epoch, self.leader_id)

    def note_follower(self, uri: str) -> None:
        """Note a follower that finished its join, and its listener's URI or ""."""
        self.had_followers = True
        if uri and uri not in self.followers:
            self.followers = [uri, *self.followers][:FORMER_LEADERS_MAX]

    @property
    def is_clean(self) -> bool:
        """Whether all its records came from its last leader."""
        return not self.led

    def note_whole(self, stored: StoredLogs) -> None:
        """Note that this node leads, or has all records of its leader: logs that are missing now are not lost."""
        self.missing_logs, self.definitions_end = sorted(stored.missing), stored.definitions_end

    def lost_logs(self, stored: StoredLogs) -> frozenset[int]:
        """Return the epochs of the queues whose logs were lost since this node was last whole.

        A log's names are durable before the definitions record the log, at the leader and at followers alike
        (`Log.append_raw`). So a recorded log that is missing was lost after it had come.
        """
        return frozenset() if self.missing_logs is None else stored.missing.difference(self.missing_logs)

    def lost_definitions(self, stored: StoredLogs) -> bool:
        """Return whether definitions are gone that were on this disk when this node was last whole."""
        return stored.definitions_end < self.definitions_end


class IdentityFile:
    """The identity on disk.

    Attributes:
        identity: the present identity; callers change it and call `save`.
    """

    def __init__(self, data_dir: Path) -> None:
        """Read the identity, or make a new one.

        Raises:
            StorageError: the file cannot be read or written, or is damaged.
        """
        self._file = StateFile(data_dir / FILE)
        found = self._file.load()
        try:
            self.identity = msgspec.convert(found, NodeIdentity)
        except msgspec.ValidationError as error:
            raise StorageError(f"{self._file.path}: {error}; restore it from a copy") from error
        self._saved = msgspec.to_builtins(self.identity)
        if not self.identity.node_id:
            self.identity.node_id = secrets.token_hex(_NODE_ID_BYTES)
            self.save()

    def save(self) -> None:
        """Save the identity; it is on disk on return.

        Raises:
            StorageError: the disk refuses it.
        """
        state = msgspec.to_builtins(self.identity)
        self._file.save(state)
        self._saved = state

    def save_changes(self) -> None:
        """As `save`, unless the identity on disk is the same: the disk may have refused the last change.

        Raises:
            StorageError: the disk refuses it.
        """
        if self._saved != msgspec.to_builtins(self.identity):
            self.save()
