"""Topic permissions are taken one by one: without any, a user may use every routing key."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import Any, cast

import pytest

from leveret.cli.api import Api
from leveret.cli.command import Session
from leveret.cli.commands.access.topic_permissions import clear_topic_permissions


class FakeApi:
    """A node with one user, who has topic permissions on two exchanges."""

    def __init__(self) -> None:
        self.deleted: list[tuple[str, ...]] = []

    def get_or_none(self, *path: str) -> Any:
        return {"name": path[1]}

    def delete(self, *path: str) -> None:
        self.deleted.append(path)


@pytest.mark.parametrize(("exchange", "path"), [("a", ("a",)), ("", ("amq.default",)), (None, ())])
def test_one_exchange_is_cleared_without_a_moment_in_which_none_is_restricted(
    exchange: str | None, path: tuple[str, ...]
) -> None:
    api = FakeApi()
    ctl = Session(lambda: nullcontext(cast(Api, api)), ExitStack(), vhost="orders", quiet=True)
    clear_topic_permissions.action(ctl, "alice", exchange)
    assert api.deleted == [("topic-permissions", "orders", "alice", *path)]
