"""The identity and history of a node in replication: stored in `replication.json`, which is never replicated.

**Epochs.** Every promotion raises the epoch, and each chunk that is appended from then on carries it. A
leader that receives a higher epoch than its own has been replaced (`seen_epoch`): it serves no client any more,
not even after a restart, until it follows or is promoted itself. All of this is on disk before any action
relies on it.
"""

from __future__ import annotations

import os
import secrets
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from leveret.model.errors import StorageError
from leveret.session.link_handshake import (
    FORMER_LEADERS_MAX,
    NONCE_BYTES,
    FollowerHandshake,
    HandshakeMessage,
    Kind,
    Leadership,
    PassedOn,
)
from leveret.storage.secret_file import Secret
from leveret.storage.state_file import StateFile
from leveret.storage.tree import STARTS_BITS

FILE: Final = "replication.json"
_NODE_ID_BYTES: Final = 12


class LinkEnd(NamedTuple):
    """This node, as nodes that follow it, or that it follows, meet it over a link.

    Attributes:
        secret: that all of them have.
        identity: who it is, and was.
        name: such as `rabbit@host`.
        own_uri: where others follow it; empty if they cannot.
        tls: makes a context for a `tls://` leader.
        cluster: the id of the cluster whose node has these data, or had them; empty for a node alone.
    """

    secret: Secret
    identity: IdentityFile
    name: str
    own_uri: Callable[[], str]
    tls: Callable[[], ssl.SSLContext | None]
    cluster: Callable[[], str] = str

    def handshake(self, kind: Kind, channel: bytes, passed_on: PassedOn | None = None) -> FollowerHandshake:
        """Begin to prove who this node is to one that it has connected to, over that channel."""
        return FollowerHandshake(
            bytes(self.secret.octets),
            kind=kind,
            node_id=self.identity.identity.node_id,
            name=self.name,
            nonce=os.urandom(NONCE_BYTES),
            channel=channel,
            passed_on=passed_on,
        )

    def prove(self, handshake: FollowerHandshake, hello: HandshakeMessage) -> HandshakeMessage:
        """Answer the hello of the node that this one has connected to, with this node's leadership."""
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
        missing: the epochs of the queues that have a log, as the definitions record, and whose log is not here.
        definitions_end: the offset up to which the definitions are on disk.
    """

    missing: frozenset[int]
    definitions_end: int


class NodeIdentity(msgspec.Struct, kw_only=True):
    """What is remembered.

    Attributes:
        node_id: drawn at the first start.
        role: what the node was last.
        epoch: of its data: the epoch of the leader it is, or follows.
        leader_id: who leads, or led, in that epoch; empty if that was not noted.
        seen_epoch, seen_leader_id: the latest leadership it has heard of.
        followed_epoch: of the leader that it was last in step with; 0 for none.
        starts: how often this node began to lead in its epoch.
        rewriting: whether logs of this node were being cut or begun anew for a leader, or a damaged one was put away,
            and not all of that is done: it may lack what was promised, and must not lead.
        led: whether it was a leader since then, so that it may have what no other node has.
        replaced_by: the URI of the leader with `seen_epoch`, if it said so.
        had_followers: whether one was in step with it since it leads in its epoch: that one may have been promoted.
        followers: URIs of those that were in step with it since then, the last one first: to be asked when it starts.
        former_leaders: URIs of those that lead or led before this node, the last one first: to be told when it leads.
        missing_logs: the epochs of the queues whose logs this node lacked when it last had all that its leader had, or
            began to lead itself; None: an older version did not record them.
        definitions_end: the offset up to which it had the definitions then.
        cluster: the id of the cluster whose node it follows, or followed before it led; empty for a node alone.
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
        """The epoch of the chunks that are appended now.

        A leader that lost with the power what it had sent already, and starts again in its epoch, must not write
        chunks that look like those; see core.replication.join.
        """
        return self.epoch << STARTS_BITS | self.starts

    @property
    def leadership(self) -> Leadership:
        """That of its data."""
        return Leadership(self.epoch, self.leader_id)

    @property
    def seen(self) -> Leadership:
        """The latest that it knows of."""
        return max(Leadership(self.seen_epoch, self.seen_leader_id), self.leadership)

    def see(self, leadership: Leadership) -> None:
        """It has heard of this one."""
        self.seen_epoch, self.seen_leader_id = max(self.seen, leadership)

    @property
    def is_fenced(self) -> bool:
        """Whether another node was promoted after this one."""
        return (self.seen_epoch, self.seen_leader_id) > (self.epoch, self.leader_id)

    def note_follower(self, uri: str) -> bool:
        """A follower is in step, and has its listener there if it has one; tell whether that is news."""
        is_known = self.had_followers and (not uri or uri in self.followers)
        self.had_followers = True
        if uri and not is_known:
            self.followers = [uri, *self.followers][:FORMER_LEADERS_MAX]
        return not is_known

    @property
    def is_clean(self) -> bool:
        """Whether all it has is its last leader's."""
        return not self.led

    def note_whole(self, stored: StoredLogs) -> None:
        """This node has all that its leader has, or leads: what it lacks now, it has not lost."""
        self.missing_logs, self.definitions_end = sorted(stored.missing), stored.definitions_end

    def lost_logs(self, stored: StoredLogs) -> frozenset[int]:
        """The epochs of the queues whose logs were here when this node was last whole, or came since, and are gone.

        A log's names are durable before the definitions record, here as at the leader, that there is a log
        (`Log.append_raw`). So a recorded log that is not here was lost after it had come.
        """
        return frozenset() if self.missing_logs is None else stored.missing.difference(self.missing_logs)

    def lost_definitions(self, stored: StoredLogs) -> bool:
        """Whether definitions are gone that were on this disk when this node was last whole."""
        return stored.definitions_end < self.definitions_end


class IdentityFile:
    """The identity on disk.

    Attributes:
        identity: as it is; change it and `save`.
    """

    def __init__(self, data_dir: Path) -> None:
        """Read it, or draw a new one.

        Raises:
            StorageError: it cannot be read or written, or is damaged.
        """
        self._file = StateFile(data_dir / FILE)
        found = self._file.load()
        try:
            self.identity = msgspec.convert(found, NodeIdentity)
        except msgspec.ValidationError as error:
            raise StorageError(f"{self._file.path}: {error}; restore it from a copy") from error
        if not self.identity.node_id:
            self.identity.node_id = secrets.token_hex(_NODE_ID_BYTES)
            self.save()

    def save(self) -> None:
        """Have it on disk when this returns.

        Raises:
            StorageError: the disk refuses it.
        """
        self._file.save(msgspec.to_builtins(self.identity))
