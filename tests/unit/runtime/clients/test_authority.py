"""Who may log in, for every listener of a node."""

from __future__ import annotations

from functools import partial

import pytest

from leveret.core.broker.access import hash_password
from leveret.core.broker.broker import Broker
from leveret.model import definitions as d
from leveret.model.errors import AccessRefused, AuthenticationFailed
from leveret.runtime.clients.authority import Authority


@pytest.fixture
def authority() -> Authority:
    """Of a node with the users `guest`, who is of this machine, and `app`; only `app` has a permission."""
    broker = Broker(lambda queue, offset: [])
    for name in ("guest", "app"):
        broker.apply(d.Put(d.User(name=name, password_hash=hash_password(name, b"salt"))))
    broker.apply(d.Put(d.Vhost(name="v")))
    broker.apply(d.Put(d.Permission(user="app", vhost="v", configure="", write="", read="^q$")))
    return Authority(broker, frozenset({"guest"}))


def test_a_user_of_this_machine_logs_in_from_nowhere_else(authority: Authority) -> None:
    assert authority.authenticate("guest", "guest", True) == "guest"
    assert authority.authenticate_external("guest", True) == "guest"
    for log_in in (
        partial(authority.authenticate, "guest", "guest", False),
        partial(authority.authenticate_external, "guest", False),
    ):
        with pytest.raises(AuthenticationFailed, match="can only connect via localhost"):
            log_in()
    assert authority.authenticate("app", "app", False) == "app"


@pytest.mark.parametrize(("name", "password"), [("app", "guest"), ("app", ""), ("nobody", "app")])
def test_wrong_credentials_are_refused_and_it_is_not_said_which_of_them(
    authority: Authority, name: str, password: str
) -> None:
    with pytest.raises(AuthenticationFailed, match=f"user '{name}' - invalid credentials"):
        authority.authenticate(name, password, True)


def test_a_user_of_the_nodes_own_jobs_is_there_while_the_job_is_and_on_this_machine_only(
    authority: Authority,
) -> None:
    with authority.internal_user("test") as (name, password):
        assert authority.authenticate(name, password, True) == name
        with pytest.raises(AuthenticationFailed):
            authority.authenticate(name, password, False)
    with pytest.raises(AuthenticationFailed):
        authority.authenticate(name, password, True)


def test_a_user_without_permissions_in_a_vhost_is_not_let_into_it(authority: Authority) -> None:
    authority.open_vhost("app", "v")
    with pytest.raises(AccessRefused):
        authority.open_vhost("guest", "v")
    assert [authority.may_read("app", "v", name) for name in ("q", "r")] == [True, False]
