"""`/api/policies` and `/api/operator-policies`: settings for all queues or exchanges whose name matches.

An operator's policy overrides policies. It is a runtime parameter of the component `operator_policy`; here it looks
like any policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.paged_lists import Listing
from leveret.management.request.replies import done, put_reply
from leveret.model.definitions import (
    OPERATOR_POLICY,
    AnyEntity,
    Delete,
    Parameter,
    Policy,
    Put,
    operator_policy,
)
from leveret.model.errors import NotFound


class PolicyBody(msgspec.Struct, rename={"apply_to": "apply-to"}):
    """The body of a PUT."""

    pattern: str
    definition: dict[str, Any]
    priority: Any = 0
    apply_to: str = "all"

    def __post_init__(self) -> None:
        """Refuse a priority that is no number: digits in a string are none."""
        if not isinstance(self.priority, int | float) or isinstance(self.priority, bool):
            raise ValueError("priority should be a number")


@dataclass(frozen=True, slots=True)
class Policies:
    """The handlers of one sort of policies.

    Attributes:
        what: the name of one in texts.
        kind: the kind of their entities.
        component: the part between vhost and name in the key of such an entity.
        entity: makes one of (vhost, name, body).
    """

    what: str
    kind: str
    component: tuple[str, ...]
    entity: Callable[[str, str, PolicyBody], AnyEntity]

    def routes(self, path: str, change: Requirement) -> list[Route]:
        """The routes below `path`; changes need `change`."""
        return [
            resource(path, GET=self.show_all),
            resource(path + "/{vhost}", GET=self.show_vhost),
            resource(
                path + "/{vhost}/{name}",
                change=change,
                GET=self.show,
                PUT=self.put,
                DELETE=self.delete,
            ),
        ]

    async def show_all(self, call: Call) -> Response:
        """The policies of all vhosts that the caller may see."""
        return await self._list(call, call.caller.sees)

    async def show_vhost(self, call: Call) -> Response:
        """The policies of one vhost."""
        vhost = call.vhost()
        return await self._list(call, lambda each: each == vhost)

    async def show(self, call: Call) -> Response:
        """One policy."""
        existing = self._existing(call)
        return call.show(_row(existing), existing)

    async def put(self, call: Call) -> Response:
        """Set a policy; it applies at once."""
        vhost, name = call.vhost(), call.new_name()
        wanted = await call.body(PolicyBody)
        entity = self.entity(vhost, name, wanted)
        existing = call.definitions[self.kind].get(entity.key)
        call.check_conditions(existing)
        await call.apply(Put(entity))
        return put_reply(existed=existing is not None)

    async def delete(self, call: Call) -> Response:
        """Clear a policy."""
        existing = self._existing(call)
        call.check_conditions(existing)
        await call.apply(Delete(self.kind, existing.key))
        return done()

    async def _list(self, call: Call, is_shown: Callable[[str], bool]) -> Response:
        existing = [
            each
            for each in call.definitions[self.kind].values()
            if each.key[1:-1] == self.component and is_shown(each.key[0])
        ]
        return await call.list(Listing(existing, _row, order=lambda each: each.key))

    def _existing(self, call: Call) -> AnyEntity:
        vhost, name = call.vhost(), call.path("name")
        existing = call.definitions[self.kind].get((vhost, *self.component, name))
        if existing is None:
            raise NotFound(f"{self.what} '{name}' does not exist in vhost '{vhost}'")
        return existing


def _policy(vhost: str, name: str, wanted: PolicyBody) -> Policy:
    return Policy(
        vhost=vhost,
        name=name,
        pattern=wanted.pattern,
        apply_to=wanted.apply_to,
        definition=wanted.definition,
        priority=wanted.priority,
    )


def _parameter(vhost: str, name: str, wanted: PolicyBody) -> Parameter:
    return Parameter(vhost=vhost, component=OPERATOR_POLICY, name=name, value=msgspec.to_builtins(wanted))


def _row(entity: AnyEntity) -> dict[str, Any]:
    policy = operator_policy(entity) if isinstance(entity, Parameter) else entity
    row: dict[str, Any] = msgspec.to_builtins(policy)
    return row


ROUTES = [
    *Policies("policy", "policies", (), _policy).routes("/api/policies", Requirement.POLICYMAKER),
    *Policies("operator policy", "parameters", (OPERATOR_POLICY,), _parameter).routes(
        "/api/operator-policies", Requirement.ADMINISTRATOR
    ),
]
