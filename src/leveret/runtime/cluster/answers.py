"""The answers of this node to requests of other nodes of its cluster (links.RequestLinks)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from leveret.model.errors import NotFound
from leveret.runtime.clients.recovery_forwarding import RECOVER
from leveret.runtime.clients.stream_server import StreamServer
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.cluster.placement.placement_controller import PlacementController
from leveret.runtime.cluster.placement.queue_roles import QueueRoles
from leveret.runtime.cluster.placement.queues import ClusterQueues
from leveret.runtime.cluster.stream_groups import ClusterStreamGroups
from leveret.runtime.cluster.stream_replicas import StreamReplicas
from leveret.runtime.logs.engine import Engine
from leveret.runtime.standby.downstream import StandbyDownstream
from leveret.runtime.standby.site import STANDBY

AnswerOperator = Callable[[str, Any], Awaitable[dict[str, Any]]]
"""(name of the request, its arguments) -> the answer."""


class AnsweringNode(Protocol):
    """The node, as this module uses it."""

    engine: Engine
    standby: StandbyDownstream
    stream_server: StreamServer


class ClusterAnswers:
    """See the module."""

    def __init__(
        self,
        member: ClusterMember,
        queues: ClusterQueues,
        roles: QueueRoles,
        placement_controller: PlacementController,
        node: AnsweringNode,
        stream_replicas: StreamReplicas,
        stream_groups: ClusterStreamGroups,
    ) -> None:
        """Answer no operator's request until `answer_operators_with`."""
        self._member = member
        self._queues = queues
        self._roles = roles
        self._placement_controller = placement_controller
        self._node = node
        self._stream_replicas = stream_replicas
        self._stream_groups = stream_groups
        self._answer_operator: AnswerOperator = _unknown

    def answer_operators_with(self, answer: AnswerOperator) -> None:
        """Answer the requests that are not the nodes' own, but made for operators, with `answer` from now on."""
        self._answer_operator = answer

    async def answer(self, node: str, what: str, about: Any) -> dict[str, Any]:
        """Answer a request of another node, or of this one.

        Raises:
            LeveretError: the request has no answer.
        """
        match what:
            case "applied":
                await self._member.has_taken(int(about["revision"]))
                await self._node.engine.refreshed()
                self._node.engine.touch()
                return {}
            case "end":
                epoch, next_offset = await self._roles.end(str(about["log"]))
                return {"epoch": epoch, "next_offset": next_offset}
            case "may_discard":
                name = str(about["log"])
                key = self._queues.key_of(name)
                is_at_rest = key is not None and self._placement_controller.is_at_rest(key)
                return {"may": is_at_rest and self._roles.may_discard(name, node)}
            case "summarised":
                await self._roles.summarised(str(about["log"]), int(about["offset"]))
                return {}
            case "move":
                key = str(about["vhost"]), str(about["name"])
                return {"moved": await self._placement_controller.move(key, str(about["to"]))}
            case _ if what == STANDBY and self._node.standby.member is not None:
                return await self._node.standby.member.parts.answer(about)
            case _ if what == RECOVER:
                return await self._node.stream_server.recover(about)
            case "store_offsets" | "stored_offset" | "publisher_sequence":
                return await self._stream_replicas.answer(what, about)
            case "join_group" | "leave_group" | "stepped_down" | "activate_consumer":
                return self._stream_groups.answer(node, what, about)
        return await self._answer_operator(what, about)


async def _unknown(what: str, about: Any) -> dict[str, Any]:
    raise NotFound(f"a node of this version does not know the request {what!r}")
