"""Identifies the caller, and decides what a caller may see and change.

Over TCP a caller has a name and a password (HTTP basic authentication) and RabbitMQ's tags. Over the node's own
socket, which only its user can open, the caller is the operator, with all permissions and no password.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Final, NamedTuple, TypeVar

from starlette.requests import HTTPConnection
from starlette.responses import Response

from leveret.core.broker.access import permission_of
from leveret.core.broker.actor import Actor, Unrestricted
from leveret.management.node import ManagedNode
from leveret.management.request.leadership import lack_of_users
from leveret.management.request.replies import REALM, error_reply
from leveret.model.addresses import is_loopback
from leveret.model.definitions import Permission, User
from leveret.model.errors import AuthenticationFailed, NotFound

T = TypeVar("T")
PROTOCOL: Final = "http"
"""The protocol under which logins are counted."""
OPERATOR_SCOPE: Final = "leveret.operator"
"""Set in the ASGI scope by the listener of the node's own socket only."""
PASSED_SCOPE: Final = "leveret.passed"
"""Set, to a `ForwardedRequest`, for questions of other nodes of the cluster only."""


class ForwardedRequest(NamedTuple):
    """A request from another node of the cluster, to be answered, or for this node's part of the answer only.

    That node has identified the user; None is the operator.
    """

    user: str | None
    is_part: bool


class Requirement(Enum):
    """The requirement of a resource; `_GRANTS` has the tags that meet it."""

    MANAGEMENT = auto()
    POLICYMAKER = auto()
    MONITORING = auto()
    ADMINISTRATOR = auto()


_GRANTS: Final[dict[str, frozenset[Requirement]]] = {
    "management": frozenset({Requirement.MANAGEMENT}),
    "policymaker": frozenset({Requirement.MANAGEMENT, Requirement.POLICYMAKER}),
    "monitoring": frozenset({Requirement.MANAGEMENT, Requirement.MONITORING}),
    "administrator": frozenset(Requirement),
}
_REFUSED: Final = {
    Requirement.MANAGEMENT: "Not management user",
    Requirement.POLICYMAKER: "Not policymaker user",
    Requirement.MONITORING: "Not monitor user",
    Requirement.ADMINISTRATOR: "Not administrator user",
}


class Unauthorised(Exception):
    """The caller is unknown or has no permission; `reply` has RabbitMQ's words."""

    def __init__(self, reply: Response) -> None:
        super().__init__()
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Requester:
    """The caller."""

    node: ManagedNode
    name: str
    tags: tuple[str, ...]
    is_operator: bool = False

    def has(self, need: Requirement) -> bool:
        """Whether the caller's tags grant this."""
        return self.is_operator or any(need in _GRANTS.get(tag, ()) for tag in self.tags)

    def require(self, need: Requirement) -> None:
        """Check `has`.

        Raises:
            Unauthorised: the caller's tags do not grant this.
        """
        if not self.has(need):
            raise Unauthorised(_refused(_REFUSED[need]))

    def sees(self, vhost: str) -> bool:
        """Whether the caller may see the content of the vhost."""
        return self.has(Requirement.ADMINISTRATOR) or self._permission(vhost) is not None

    def knows(self, vhost: str) -> bool:
        """Whether the caller may see the vhost itself, with its totals."""
        return self.has(Requirement.MONITORING) or self.sees(vhost)

    def enter(self, vhost: str) -> None:
        """Check that the vhost exists and that the caller `sees` it.

        Raises:
            NotFound: there is no such vhost. Unauthorised: the caller may not see it.
        """
        if (vhost,) not in self.node.broker.definitions.by_kind["vhosts"]:
            raise NotFound(f"vhost '{vhost}' does not exist")
        if not self.sees(vhost):
            raise Unauthorised(_refused("User not authorised to access virtual host"))

    def watched(self, found: list[T], user_of: Callable[[T], str | None]) -> list[T]:
        """The part that the caller may see of what users have open: all for monitors, else its own."""
        if self.has(Requirement.MONITORING):
            return found
        return [each for each in found if user_of(each) == self.name]

    def require_own(self, user: str | None) -> None:
        """Check that what `user` has open is the caller's own, or that the caller is an administrator.

        Raises:
            Unauthorised: it is another user's.
        """
        if user != self.name and not self.has(Requirement.ADMINISTRATOR):
            raise Unauthorised(_refused("User not authorised to access object"))

    def in_vhost(self, vhost: str) -> Actor:
        """The caller's operations in the vhost."""
        broker = self.node.broker
        return Unrestricted(broker, vhost) if self.is_operator else Actor(broker, self.name, vhost)

    def _permission(self, vhost: str) -> Permission | None:
        return permission_of(self.node.broker.definitions, self.name, vhost)


def identify(
    node: ManagedNode, connection: HTTPConnection, *, takes_credentials_in_query: bool = False
) -> Requester:
    """Identify the caller.

    Args:
        node: the node.
        connection: the request.
        takes_credentials_in_query: whether `auth` in the query may replace the header, for a page that leads its
            browser to a file; queries are not logged.

    Raises:
        Unauthorised: no credentials, wrong ones, or a forbidden address.
    """
    passed = connection.scope.get(PASSED_SCOPE)
    if connection.scope.get(OPERATOR_SCOPE) is True or (passed is not None and passed.user is None):
        return Requester(node, "operator", ("administrator",), is_operator=True)
    if passed is not None:
        return _caller(node, passed.user)
    in_query = connection.query_params.get("auth") if takes_credentials_in_query else None
    return log_in(node, connection, *_credentials(connection, in_query))


def log_in(node: ManagedNode, connection: HTTPConnection, username: str, password: str) -> Requester:
    """Identify a caller by credentials.

    Raises:
        Unauthorised: wrong credentials, a forbidden address, or a node that cannot tell yet (503).
    """
    client = connection.client
    try:
        name = node.authenticate(username, password, client is not None and is_loopback(client.host))
    except AuthenticationFailed as error:
        if reason := lack_of_users(node):
            raise Unauthorised(error_reply(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", reason)) from None
        node.broker.logins.count(PROTOCOL, succeeded=False)
        raise Unauthorised(_challenge(connection, str(error))) from None
    node.broker.logins.count(PROTOCOL, succeeded=True)
    return _caller(node, name)


def _caller(node: ManagedNode, name: str) -> Requester:
    user = node.broker.definitions.by_kind["users"].get((name,))
    return Requester(node, name, user.tags if isinstance(user, User) else ())


def _credentials(connection: HTTPConnection, in_query: str | None) -> tuple[str, str]:
    given = connection.headers.get("authorization", f"basic {in_query}" if in_query is not None else "")
    scheme, _, encoded = given.partition(" ")
    if scheme.lower() != "basic":
        raise Unauthorised(_challenge(connection, "no credentials"))
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except ValueError:  # no base64, letters beyond ASCII, or no UTF-8
        raise Unauthorised(_challenge(connection, "malformed credentials")) from None
    username, _, password = text.partition(":")
    return username, password


def _challenge(connection: HTTPConnection, detail: str) -> Response:
    """Ask for a name and a password; without a challenge for a page's own request, so that the browser does not ask."""
    asks_itself = "referer" in connection.headers and "authorization" in connection.headers
    headers = {} if asks_itself else {"www-authenticate": REALM}
    return error_reply(HTTPStatus.UNAUTHORIZED, "not_authorized", f"Login failed: {detail}", headers)


def _refused(reason: str) -> Response:
    return error_reply(HTTPStatus.UNAUTHORIZED, "not_authorised", reason)
