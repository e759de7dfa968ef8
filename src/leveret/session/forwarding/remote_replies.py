"""Direct replies to clients of other nodes of the cluster, over one channel for each node and vhost.

The name for a reply has the node of its client. A reply is delivered at once, or never: it is sent once, nothing waits
for an answer, and a node that does not know the client any more drops it. Replies wait only while the first connection
to a node is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from leveret.core.queues.messages import Messages
from leveret.model.errors import PeerError
from leveret.session.amqp091.direct_reply import node_of
from leveret.session.forwarding.leader_client import PIECE_BYTES, LeaderClient
from leveret.wire import amqp091 as wire
from leveret.wire import forwarding

WAITING_BYTES_MAX: Final = 1024 * 1024
"""The most octets of replies that wait for connections; further ones are dropped."""


@dataclass(frozen=True, slots=True)
class RemoteReply:
    """The clients of another node (core.broker.direct_reply.DirectReply)."""

    replies: RemoteReplies
    node: str
    vhost: str

    def take_reply(self, messages: Messages) -> None:
        """Send replies to the node."""
        self.replies.send(self.node, self.vhost, messages)


class RemoteReplies:
    """See the module.

    Attributes:
        runs: whether another node of the cluster has this name, and runs.
    """

    def __init__(self, connection_to: Callable[[str, str], LeaderClient]) -> None:
        """`connection_to` gives the connection to a node for a vhost, and makes it if there is none."""
        self.runs: Callable[[str], bool] = lambda node: False
        self._connection_to = connection_to
        self._channels: dict[LeaderClient, _ReplyChannel] = {}
        self._waiting: dict[LeaderClient, list[Messages]] = {}
        self._waiting_bytes = 0

    def find(self, vhost: str, name: str) -> RemoteReply | None:
        """The client of another node with this name for replies; None if no other node has it."""
        node = node_of(name)
        return RemoteReply(self, node, vhost) if node and self.runs(node) else None

    def send(self, node: str, vhost: str, messages: Messages) -> None:
        """Send replies to a node's clients, or drop them."""
        if not self.runs(node):
            return
        leader_client = self._connection_to(node, vhost)
        if leader_client.is_up:
            self._publish(leader_client, messages)
        elif self._waiting_bytes + messages.entry_bytes <= WAITING_BYTES_MAX:
            self._waiting.setdefault(leader_client, []).append(messages)
            self._waiting_bytes += messages.entry_bytes

    def _publish(self, leader_client: LeaderClient, messages: Messages) -> None:
        channel = self._channels.get(leader_client)
        if channel is None:
            if leader_client.is_crowded:
                return
            channel = self._channels[leader_client] = _ReplyChannel(leader_client, self._channels)
        for part in messages.parts(len(messages), PIECE_BYTES):
            leader_client.publish(channel.number, part)

    def waits_for(self, leader_client: LeaderClient) -> bool:
        """Whether replies wait for a connection."""
        return leader_client in self._waiting

    def go_on(self) -> None:
        """Send the replies whose connection is made; drop those whose node does not run."""
        for leader_client in [each for each in self._waiting if each.is_up or not self.runs(each.leader)]:
            for messages in self._waiting.pop(leader_client):
                self._waiting_bytes -= messages.entry_bytes
                if leader_client.is_up:
                    self._publish(leader_client, messages)


class _ReplyChannel:
    """A channel without a target, for publishes to names for replies (leader_client.LeaderClient.channels)."""

    def __init__(self, leader_client: LeaderClient, known: dict[LeaderClient, _ReplyChannel]) -> None:
        self.number = leader_client.number()
        self._leader_client = leader_client
        self._known = known
        leader_client.channels[self.number] = self
        leader_client.send(forwarding.channel_open(self.number))

    def frame(self, kind: int, payload: bytes) -> None:
        """Take a frame of the node about it.

        Raises:
            PeerError: the frame is invalid.
        """
        if payload[:4] == wire.CHANNEL_CLOSE:
            self._leader_client.send(forwarding.channel_close_ok(self.number))
            self._leader_client.release(self.number)
            self.lost()
        elif payload[:4] != wire.CHANNEL_OPEN_OK:
            raise PeerError(f"method {payload[:4].hex()} on a channel for replies")

    def lost(self) -> None:
        """Note that the channel is gone."""
        self._known.pop(self._leader_client, None)
