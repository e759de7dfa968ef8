"""Single active consumer of the stream protocol: one member of a group, which shares a name, reads a stream.

Without a super stream the oldest member is active, and the next oldest succeeds it. On a partition of a super stream
the active member is number `partition` modulo the count of members, so that several instances of an application share
the partitions evenly. A member that has to step down is asked first, and only its answer activates its successor: so
two members never read at once.
"""

from __future__ import annotations

from typing import Protocol


class GroupMember(Protocol):
    """A subscription with a single active consumer."""

    def activate(self, active: bool) -> None:
        """Let the member read, or ask it to stop and to call `ConsumerGroup.stepped_down`."""

    def end(self) -> None:
        """End the subscription: its group is gone, and its client has to subscribe again."""


class ConsumerGroup:
    """The subscriptions to one stream under one name.

    Attributes:
        members: in the order of their arrival.
        active: the member that reads, None for none.
    """

    def __init__(self, partition: int | None = None) -> None:
        """`partition` is the index of the stream in its super stream, None for a stream of its own."""
        self.members: list[GroupMember] = []
        self.active: GroupMember | None = None
        self._partition = partition
        self._stepping_down = False

    def join(self, member: GroupMember) -> None:
        """Add a member, and activate it if it is its turn."""
        self.members.append(member)
        self._settle()

    def leave(self, member: GroupMember) -> None:
        """Remove a member, and activate another one if it was active."""
        if member not in self.members:
            return
        self.members.remove(member)
        if self.active is member:
            self.active = None
            self._stepping_down = False
        self._settle()

    def stepped_down(self, member: GroupMember) -> None:
        """Note that the active member has stopped, as asked."""
        if self.active is member and self._stepping_down:
            self.active = None
            self._stepping_down = False
            self._settle()

    def _settle(self) -> None:
        """Activate the member whose turn it is."""
        if not self.members or self._stepping_down:
            return
        chosen = self._chosen()
        if chosen is self.active:
            return
        if self.active is None:
            self.active = chosen
            chosen.activate(True)
        else:
            self._stepping_down = True
            self.active.activate(False)

    def _chosen(self) -> GroupMember:
        if self._partition is None:
            return self.active or self.members[0]
        return self.members[self._partition % len(self.members)]


class ConsumerGroups:
    """All groups of a node, by (vhost, stream, name)."""

    def __init__(self) -> None:
        """None yet."""
        self._groups: dict[tuple[str, str, str], ConsumerGroup] = {}

    def join(self, key: tuple[str, str, str], member: GroupMember, partition: int | None) -> ConsumerGroup:
        """Add a member to its group, which the first member makes."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ConsumerGroup(partition)
        group.join(member)
        return group

    def leave(self, key: tuple[str, str, str], member: GroupMember) -> None:
        """Remove a member; a group ends with its last."""
        group = self._groups.get(key)
        if group is not None:
            group.leave(member)
            if not group.members:
                del self._groups[key]

    def end(self, vhost: str, stream: str) -> None:
        """Forget the groups of a stream without a word to their members: they have ended with its leader."""
        for key in [key for key in self._groups if key[:2] == (vhost, stream)]:
            del self._groups[key]

    def stepped_down(self, key: tuple[str, str, str], member: GroupMember) -> None:
        """See `ConsumerGroup.stepped_down`."""
        group = self._groups.get(key)
        if group is not None:
            group.stepped_down(member)
