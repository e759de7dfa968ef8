"""The commands of schema replication, over the control socket of a node that answers as the test says."""

from __future__ import annotations

import json

from leveret.cli.commands.replication import schema_replication as commands
from tests.unit.cli.commands.replication.test_followers import Ctl, ctl, node  # noqa: F401 - fixtures
from tests.unit.management.conftest import FakeNode


def test_what_a_sync_would_change_is_a_table_for_people_and_all_of_it_for_programs(ctl: Ctl) -> None:  # noqa: F811
    status, out, _ = ctl("schema_replication_diff")
    assert (status, out.splitlines()) == (
        0,
        [
            "What a schema sync would change ...",
            "action\tkind\tentity\tdetail",
            "change\tvhosts\tv\tdescription: a -> b",
        ],
    )
    status, out, _ = ctl("--formatter", "json", "schema_replication_diff")
    [row] = json.loads(out)
    assert (row["key"], row["own"], row["upstream"]) == (["v"], {"description": "a"}, {"description": "b"})


def test_what_was_changed_is_listed(ctl: Ctl) -> None:  # noqa: F811
    status, out, _ = ctl("schema_replication_history")
    assert status == 0
    assert out.splitlines()[-1].startswith("7\t")
    assert out.splitlines()[-1].endswith("\tput queues v/q")
    [row] = json.loads(ctl("--formatter", "json", "schema_replication_history")[1])
    assert row["changes"] == ["put queues v/q"]


def test_changes_that_are_not_shown_are_counted() -> None:
    assert commands._shortened(["a", "b", "c"]) == "a, b, c"
    assert commands._shortened(["a", "b", "c", "d", "e"]) == "a, b, c, and 2 more"


def test_a_sync_is_forced_only_when_that_is_said(ctl: Ctl, node: FakeNode) -> None:  # noqa: F811
    status, out, _ = ctl("sync_schema_replication")
    assert (status, out.splitlines()[1:]) == (0, ["Put: 1", "Deleted: 2", "Conflict: queues v/q: why"])
    assert ctl("sync_schema_replication", "--force")[0] == 0
    assert node.schema_sync.calls == [("sync", False), ("sync", True)]
