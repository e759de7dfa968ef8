"""Commands of leveretctl that alter a part of a definition, while another operator alters another part."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from leveret.cli.api import Api, CtlError
from leveret.cli.command import Session
from leveret.cli.commands.access.user_limits import clear_user_limits, set_user_limits
from leveret.cli.commands.access.users import add_user, change_password, clear_password, set_user_tags
from leveret.cli.commands.broker.streams import add_super_stream, delete_super_stream
from leveret.cli.commands.nodes.mirrors import remove_classic_queue_mirroring_from_policies
from leveret.core.broker.access import check_password
from leveret.model.definitions import User

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode

POLICY = {"pattern": "a", "priority": 1, "apply-to": "queues"}
ALTERATIONS: dict[str, Callable[[Session], Any]] = {
    "password": lambda ctl: change_password.action(ctl, "u", "new"),
    "no password": lambda ctl: clear_password.action(ctl, "u"),
    "tags": lambda ctl: set_user_tags.action(ctl, "u", ["management"]),
    "limits": lambda ctl: set_user_limits.action(ctl, "u", '{"max-channels": 5}'),
    "no limits": lambda ctl: clear_user_limits.action(ctl, "u", "max-channels"),
}


class Between:
    """A command's connection; `act` is done before the command's first change arrives."""

    def __init__(self, admin: Client) -> None:
        self.act: Callable[[], object] = lambda: None
        self.reads = 0
        self._admin = admin

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.reads += request.method == "GET"
        if request.method != "GET":
            act, self.act = self.act, lambda: None
            act()
        headers = {
            name: value for name, value in request.headers.items() if name.startswith(("if-", "content-t"))
        }
        path = request.url.raw_path.decode()
        reply = self._admin.request(request.method, path, content=request.content, headers=headers)
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    def session(self) -> Session:
        client = httpx.Client(transport=httpx.MockTransport(self.answer), base_url="http://node")
        return Session(lambda: nullcontext(Api(client, "the node")), ExitStack(), vhost="/", quiet=True)


@pytest.fixture
def between(admin: Client) -> Between:
    return Between(admin)


def user(node: FakeNode) -> User:
    found = node.broker.definitions.by_kind["users"][("u",)]
    assert isinstance(found, User)
    return found


@pytest.mark.parametrize("name", ALTERATIONS)
@pytest.mark.parametrize("other", ["tags", "limits", "password"])
def test_the_change_of_another_operator_is_kept(
    between: Between, admin: Client, node: FakeNode, name: str, other: str
) -> None:
    node.add_user("u")
    admin.put("/api/user-limits/u/max-connections", value=7)
    changes: dict[str, dict[str, object]] = {
        "tags": {"password_hash": user(node).password_hash, "tags": "policymaker"},
        "limits": {"password_hash": user(node).password_hash, "tags": "", "limits": {"max-connections": 8}},
        "password": {"password": "theirs", "tags": ""},
    }
    between.act = lambda: admin.put("/api/users/u", **changes[other])
    ALTERATIONS[name](between.session())
    assert between.reads == 2, "once, and once more after the other's change"
    found = user(node)
    if other == "tags" and name != "tags":
        assert found.tags == ("policymaker",)
    if other == "limits":
        assert found.limits["max-connections"] == 8
    if other == "password" and "password" not in name:
        assert check_password(found, "theirs")
    if name == "tags":
        assert found.tags == ("management",)
    if name == "limits":
        assert found.limits["max-channels"] == 5
    if name == "password":
        assert check_password(found, "new")


@pytest.mark.parametrize("name", ALTERATIONS)
def test_a_user_who_is_deleted_meanwhile_stays_deleted(
    between: Between, admin: Client, node: FakeNode, name: str
) -> None:
    node.add_user("u")
    between.act = lambda: admin.delete("/api/users/u")
    with pytest.raises(CtlError, match='User "u" does not exist'):
        ALTERATIONS[name](between.session())
    assert ("u",) not in node.broker.definitions.by_kind["users"]


def test_of_two_operators_who_add_a_user_one_is_refused(
    between: Between, admin: Client, node: FakeNode
) -> None:
    between.act = lambda: admin.put("/api/users/u", password="theirs", tags="")
    with pytest.raises(CtlError, match='User "u" already exists'):
        add_user.action(between.session(), "u", "mine")
    assert check_password(user(node), "theirs")


@pytest.mark.parametrize("path", ["policies", "operator-policies"])
@pytest.mark.parametrize("kept", [{}, {"max-length": 5}])
def test_a_policy_that_changes_meanwhile_loses_its_mirroring_only(
    between: Between, admin: Client, path: str, kept: dict[str, int]
) -> None:
    place = f"/api/{path}/%2F/p"
    admin.put(place, **POLICY, definition={"max-length": 4, "ha-mode": "all"})
    between.act = lambda: admin.put(place, **POLICY, definition={"ha-mode": "all"} | kept)
    remove_classic_queue_mirroring_from_policies.action(between.session())
    found = admin.get(place)
    assert (found.status_code, found.json().get("definition", {})) == (200 if kept else 404, kept)


def test_a_super_stream_that_cannot_be_made_takes_nothing_of_anothers_with_it(
    between: Between, admin: Client, node: FakeNode
) -> None:
    def theirs() -> None:
        admin.put("/api/exchanges/%2F/s", durable=True, arguments={"x-super-stream": True})
        admin.put("/api/queues/%2F/s-0", durable=True, arguments={"x-queue-type": "stream"})

    between.act = theirs
    with pytest.raises(CtlError, match="there is already an exchange named s"):
        add_super_stream.action(between.session(), "s", 1)
    assert ("/", "s-0") in node.broker.queues
    assert "s" in node.broker.topology("/").exchanges


@pytest.mark.parametrize(
    ("nodes", "given", "locator"),
    [
        (["n1"], None, None),
        (["n1", "n2"], None, "balanced"),
        (["n1", "n2"], "client-local", "client-local"),
    ],
)
def test_partitions_of_a_super_stream_spread_over_a_clusters_nodes(
    between: Between, node: FakeNode, nodes: list[str], given: str | None, locator: str | None
) -> None:
    session = between.session()
    answer = session.api.get
    session.api.get = lambda *path: nodes if path == ("nodes",) else answer(*path)  # type: ignore[method-assign]
    add_super_stream.action(session, "s", 2, leader_locator=given)
    found = [node.broker.queues["/", f"s-{number}"].definition.arguments for number in range(2)]
    assert [each.get("x-queue-leader-locator") for each in found] == [locator] * 2


def test_a_super_stream_has_partitions_or_binding_keys(between: Between) -> None:
    with pytest.raises(CtlError, match="give --partitions or --binding-keys, not both"):
        add_super_stream.action(between.session(), "s", 2, "eu,us")


@pytest.mark.parametrize(
    ("arguments", "ends", "is_one"),
    [
        ({"x-super-stream": True}, ["stream", "classic"], True),
        ({}, ["stream"], True),
        ({}, ["stream", "classic"], False),
        ({}, ["classic"], False),
        ({}, [], False),
    ],
)
def test_an_exchange_that_is_no_super_stream_is_not_deleted_as_one(
    between: Between, admin: Client, node: FakeNode, arguments: dict[str, bool], ends: list[str], is_one: bool
) -> None:
    admin.put("/api/exchanges/%2F/x", arguments=arguments)
    for kind in ends:
        admin.put(f"/api/queues/%2F/{kind}", durable=True, arguments={"x-queue-type": kind})
        admin.post(f"/api/bindings/%2F/e/x/q/{kind}", routing_key="k", arguments={})
    with nullcontext() if is_one else pytest.raises(CtlError, match="is no super stream"):
        delete_super_stream.action(between.session(), "x")
    assert ("x" in node.broker.topology("/").exchanges) is not is_one
    assert ("stream" in [name for _, name in node.broker.queues]) is ("stream" in ends and not is_one)
    assert ("classic" in [name for _, name in node.broker.queues]) is ("classic" in ends)
