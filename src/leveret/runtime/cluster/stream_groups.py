"""Single active consumers of a stream whose readers are at several nodes: the leader of the stream has the groups.

A reader of a replica joins its group at the leader; for the leader it is a member like the subscriptions of its own
clients. The leader activates members, and requests them to step down, at any node.

A group ends with the leadership. Every member at a replica learns that its subscription has ended, and subscribes
again: so the next leader activates only members that have joined it.

Two nodes that do not reach each other for a while, and run, end the subscriptions that they cannot speak about. The end
is repeated until the other node has heard of it: else the leader would keep an active member that has left, or a reader
would wait for ever for its turn in a group that it is no member of.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import Stream
from leveret.core.queues.stream_groups import GroupMember
from leveret.model.definitions import QueueKey
from leveret.model.errors import LedElsewhere, LeveretError
from leveret.runtime.cluster.membership.member import ClusterMember

if TYPE_CHECKING:
    from leveret.runtime.node.node import Node

_TRIES: Final = 25
_TRY_AGAIN_S: Final = 0.2

GroupKey = tuple[str, str, str]
"""Vhost, stream and the group's name."""


class _Joined(NamedTuple):
    """A member, at this node, of a group at another node."""

    key: GroupKey
    member: GroupMember
    leader: str


class _Notice(NamedTuple):
    """A message to a node; `failed` is called if the node does not receive it."""

    what: str
    about: dict[str, Any]
    failed: Callable[[], None]


class ForwardedMember:
    """core.queues.stream_groups.GroupMember: a subscription at another node."""

    def __init__(
        self, groups: ClusterStreamGroups, node: str, run_id: str, number: int, key: GroupKey
    ) -> None:
        """Represent the member with that number of a node's present run."""
        self.node = node
        self.run_id = run_id
        self.number = number
        self.key = key
        self._groups = groups

    def activate(self, active: bool) -> None:
        """See GroupMember."""
        self._groups.activate(self, active=active)

    def end(self) -> None:
        """See GroupMember: the node ends it when it learns of the next leader."""


class ClusterStreamGroups:
    """See the module; runtime.clients.stream_host.StreamGroups for streams that other nodes lead."""

    def __init__(self, member: ClusterMember, node: Node) -> None:
        """Start without a member at another node."""
        self._me = member.name
        self._ask_node = member.ask
        self._alive = member.state.alive
        self._broker = node.broker
        self._led = node.stream_server.groups
        self._numbers = count(1)
        self._joined: dict[int, _Joined] = {}
        self._members: dict[tuple[str, int], ForwardedMember] = {}
        self._to_send: dict[str, deque[_Notice]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}

    def stop(self) -> None:
        """Send no more."""
        for task in self._sending.values():
            task.cancel()

    # -- messages to other nodes, in order ----------------------------------------------------

    def _send(self, node: str, notice: _Notice) -> None:
        self._to_send.setdefault(node, deque()).append(notice)
        if node not in self._sending:
            self._sending[node] = asyncio.get_running_loop().create_task(self._send_all(node))

    def _send_until_heard(self, node: str, what: str, about: dict[str, Any]) -> None:
        """Send a message again and again, behind those that came meanwhile, for as long as the node runs."""
        if node in self._alive:
            self._send(node, _Notice(what, about, lambda: self._send_until_heard(node, what, about)))

    async def _send_all(self, node: str) -> None:
        waiting = self._to_send[node]
        try:
            while waiting:
                notice = waiting.popleft()
                if not await self._has_sent(node, notice):
                    notice.failed()
        finally:
            del self._sending[node]

    async def _has_sent(self, node: str, notice: _Notice) -> bool:
        for _ in range(_TRIES):
            try:
                await self._ask_node(node, notice.what, notice.about)
                return True
            except LeveretError:
                if node not in self._alive:
                    break
                await asyncio.sleep(_TRY_AGAIN_S)
        return False

    # -- at the reader's node -----------------------------------------------------------------

    def join(self, key: GroupKey, member: GroupMember, partition: int | None) -> int:
        """See StreamGroups: join a subscription here to its group at the leader; return its number there."""
        queue = self._broker.queues.get(key[:2])
        leader = queue.leader if isinstance(queue, RemoteQueue) else self._me
        number = next(self._numbers)
        self._joined[number] = _Joined(key, member, leader)
        about = self._about(number, key) | {"partition": partition}
        self._send(leader, _Notice("join_group", about, lambda: self._give_up(number)))
        return number

    def leave(self, key: GroupKey, member: GroupMember) -> None:
        """See StreamGroups."""
        number = self._number_of(member)
        if number is not None:
            self._send_until_heard(self._joined.pop(number).leader, "leave_group", self._about(number, key))

    def stepped_down(self, key: GroupKey, member: GroupMember) -> None:
        """See StreamGroups: report to the leader that the member has stopped."""
        number = self._number_of(member)
        if number is not None:
            notice = _Notice("stepped_down", self._about(number, key), lambda: self._give_up(number))
            self._send(self._joined[number].leader, notice)

    def _about(self, number: int, key: GroupKey) -> dict[str, Any]:
        vhost, stream, group = key
        return {"number": number, "vhost": vhost, "stream": stream, "group": group}

    def _number_of(self, member: GroupMember) -> int | None:
        return next((number for number, each in self._joined.items() if each.member is member), None)

    def _end(self, number: int) -> None:
        joined = self._joined.pop(number, None)
        if joined is not None:
            joined.member.end()

    def _give_up(self, number: int) -> None:
        """End a member that the leader of its group cannot be told about."""
        joined = self._joined.get(number)
        if joined is not None:
            self._end(number)
            self._send_until_heard(joined.leader, "leave_group", self._about(number, joined.key))

    def leader_changed(self, key: QueueKey) -> None:
        """End the members of a stream's groups, here and of this node as a leader: its next leader has new ones."""
        for number, joined in list(self._joined.items()):
            if joined.key[:2] == key:
                self._end(number)
        # If this node leads the stream again, no member from before may be the active one.
        self._members = {place: each for place, each in self._members.items() if each.key[:2] != key}
        self._led.end(*key)

    # -- at the leader ------------------------------------------------------------------------

    def activate(self, member: ForwardedMember, *, active: bool) -> None:
        """Activate a member at another node, or request it to stop."""
        about = {"number": member.number, "active": active}
        self._send(member.node, _Notice("activate_consumer", about, lambda: self._exclude(member)))

    def _exclude(self, member: ForwardedMember) -> None:
        """Remove a member whose node cannot be told that it is its turn, or no longer, and have its node end it."""
        self._leave(member)
        about = {"number": member.number, "active": False, "ended": True}
        self._send_until_heard(member.node, "activate_consumer", about)

    def _leave(self, member: ForwardedMember) -> None:
        if self._members.pop((member.node, member.number), None) is not None:
            self._led.leave(member.key, member)

    def _run_id(self, node: str) -> str:
        presence = self._alive.get(node)
        return presence.run_id if presence is not None else ""

    def node_changed(self, name: str) -> None:
        """Remove the members of a node that is gone, or runs anew: they ended with its previous run."""
        present = self._run_id(name)
        for member in list(self._members.values()):
            if member.node == name and member.run_id != present:
                self._leave(member)

    def answer(self, node: str, what: str, about: Any) -> dict[str, Any]:
        """Handle another node's message.

        Raises:
            LedElsewhere: this node does not lead the stream.
        """
        number = int(about["number"])
        if what == "activate_consumer":
            joined = self._joined.get(number)
            if about.get("ended"):
                self._end(number)
            elif joined is not None:
                joined.member.activate(bool(about["active"]))
            return {}
        key = str(about["vhost"]), str(about["stream"]), str(about["group"])
        member = self._members.get((node, number))
        if what == "join_group":
            if not isinstance(self._broker.queues.get(key[:2]), Stream):
                raise LedElsewhere(f"stream '{key[1]}' in vhost '{key[0]}' is not led here")
            if member is None:
                member = ForwardedMember(self, node, self._run_id(node), number, key)
                self._members[node, number] = member
                self._led.join(key, member, about["partition"])
        elif member is not None and what == "leave_group":
            self._leave(member)
        elif member is not None:
            self._led.stepped_down(key, member)
        return {}
