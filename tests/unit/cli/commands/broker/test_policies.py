"""Policies that do nothing are told as they are set."""

from __future__ import annotations

import io
from contextlib import ExitStack, nullcontext
from typing import Any, cast

import pytest

from leveret.cli.api import Api
from leveret.cli.command import Session
from leveret.cli.commands.broker.policies import set_policy


class FakeApi:
    """A node with one virtual host."""

    def __init__(self, tags: list[str]) -> None:
        self.tags = tags
        self.put_bodies: list[Any] = []

    def get(self, *path: str) -> Any:
        assert path == ("vhosts", "orders")
        return {"name": "orders", "tags": self.tags}

    get_or_none = get

    def put(self, *path: str, body: Any) -> None:
        self.put_bodies.append(body)


@pytest.mark.parametrize(
    ("tags", "definition", "warning"),
    [
        (
            ["a"],
            '{"remote-dc-replicate": true}',
            "update_vhost_metadata 'orders' --tags a,standby_replication",
        ),
        (["standby_replication"], '{"remote-dc-replicate": true}', ""),
        ([], '{"remote-dc-replicate": false}', ""),
        ([], '{"max-length": 5}', ""),
    ],
)
def test_a_policy_that_replicates_nothing_for_lack_of_a_tag_is_set_with_a_warning(
    tags: list[str], definition: str, warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApi(tags)
    ctl = Session(lambda: nullcontext(cast(Api, api)), ExitStack(), vhost="orders", quiet=True)
    set_policy.action(ctl, "osr", "^.*", definition)
    assert len(api.put_bodies) == 1
    printed = capsys.readouterr().err
    assert warning in printed
    assert bool(printed) == bool(warning)


def test_a_definition_on_standard_input_is_read_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"remote-dc-replicate": true}'))
    api = FakeApi([])
    ctl = Session(lambda: nullcontext(cast(Api, api)), ExitStack(), vhost="orders", quiet=True)
    set_policy.action(ctl, "osr", "^.*", "-")
    assert [body["definition"] for body in api.put_bodies] == [{"remote-dc-replicate": True}]
    assert "standby_replication" in capsys.readouterr().err
