"""Publishes recovered messages to queues that another node leads (clients.recovery_forwarding.RecoveryPort)."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from leveret.model.errors import PreconditionFailed
from leveret.runtime.clients.recovery_forwarding import RECOVER
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.cluster.sites.standby_site import ClusterStandbySite


class ClusterRecoveryPort:
    """See the module."""

    def __init__(self, member: ClusterMember, site: ClusterStandbySite) -> None:
        """Use this member's links."""
        self._member = member
        self._site = site

    @property
    def name(self) -> str:
        """The name of this node."""
        return self._member.name

    def check_recoverer(self, vhost: str, node: str, term: int) -> None:
        """See RecoveryPort."""
        owner = self._site.owners.get(vhost)
        if owner is not None and (owner.recoverer != node or owner.term != term):
            raise PreconditionFailed(
                f"vhost '{vhost}' is recovered by node {owner.recoverer} in term {owner.term}, not by {node} in term "
                f"{term}: its messages are refused"
            )

    def term_of(self, vhost: str) -> int:
        """See RecoveryPort."""
        owner = self._site.owners.get(vhost)
        return 0 if owner is None else owner.term

    async def ask(self, node: str, about: dict[str, Any]) -> dict[str, Any]:
        """See RecoveryPort."""
        answer: dict[str, Any] = await self._member.ask(node, RECOVER, about)
        return answer

    def changing(self) -> AbstractAsyncContextManager[None]:
        """See RecoveryPort."""
        return self._member.definitions_lock.held(
            lambda: "the queues of recovered messages cannot be made now: another node changes definitions"
        )
