"""Which archive is recovered where nodes have parts of a vhost each, and which recoveries are refused for that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.core.replication.standby_site import RecoveryRequest
from leveret.core.replication.vhost_owners import VhostOwner
from leveret.model.errors import PreconditionFailed
from leveret.runtime.standby.other_archives import choose_archive, choose_drained_archive
from leveret.runtime.standby.site import SiteParts
from leveret.runtime.standby.site_recoveries import SiteRecoveries

OWNER = VhostOwner("b", 2, holder="a", claimed=2, beside=("b",))
Logs = dict[str, list[int]]


class Parts:
    """The answers of the nodes a, which a recovery reads, and b, by the logs in their archives."""

    def __init__(self, a: Logs, b: Logs) -> None:
        self.site = SimpleNamespace(running=["a", "b"], note=self.note)
        self.noted: list[VhostOwner] = []
        self.missing = 0
        self.link: dict[str, Any] = {"virtual_host": "v", "state": "connecting", "heard_ago_ms": 1}
        self._logs = {"a": a, "b": b}

    async def note(self, vhost: str, owner: VhostOwner) -> None:
        assert vhost == "v"
        self.noted.append(owner)

    async def of(self, node: str, name: str) -> dict[str, Any]:
        if name == "status":
            return {"vhosts": [self.link] if node == "a" else []}
        rows: list[dict[str, Any]] = [{"vhost": "other", "logs": {}, "newest_ms": 9_000}]
        if logs := self._logs[node]:
            newest_ms, missing = (60_000, self.missing) if node == "b" else (1_000, 0)
            rows.append(
                {"vhost": "v", "logs": logs, "newest_ms": newest_ms}
                | {"missing": missing, "missing_messages": 0}
            )
        return {"vhosts": rows}


def parts_of(a: Logs, b: Logs) -> tuple[Parts, SiteParts]:
    parts = Parts(a, b)
    return parts, cast(SiteParts, parts)


@pytest.mark.parametrize(
    ("a", "b", "more"),
    [
        ({"v": [7, 0, 50]}, {"v": [7, 13, 50]}, 0),
        ({"v": [7, 0, 50]}, {"v": [7, 13, 80]}, 30),
        ({"v": [7, 0, 50]}, {"v": [7, 60, 80]}, 20),
        ({"v": [7, 0, 50]}, {"v": [8, 0, 3]}, 3),
        ({"v@x": [7, 0, 50]}, {"v@x": [7, 0, 40], "v@y": [9, 2, 6]}, 4),
        ({"v": [7, 0, 50]}, {}, 0),
    ],
    ids=["as far", "further", "behind a gap", "of a later log", "of another node", "nothing"],
)
async def test_later_records_of_another_archive_are_counted(a: Logs, b: Logs, more: int) -> None:
    answers, parts = parts_of(a, b)
    for check in (choose_archive, choose_drained_archive):
        if not more:
            assert not await check(parts, "v", OWNER)
            continue
        with pytest.raises(PreconditionFailed) as refusal:
            await check(parts, "v", OWNER)
        text = str(refusal.value)
        assert f"node b, which transferred it as well, has {more} records more, up to 1970" in text
        assert "forget_cluster_node a" in text
        assert "is of 1970-01-01T00:00:01.000" in text
    assert not answers.noted


@pytest.mark.parametrize(
    ("change", "is_refused"),
    [
        ({"state": "connected"}, False),
        ({"state": "connected", "heard_ago_ms": 60_000}, True),
        ({"state": "connected", "heard_ago_ms": None}, True),
        ({"state": "connected", "virtual_host": "other"}, True),
    ],
    ids=["it is there", "it is silent", "it was not heard", "of another vhost"],
)
async def test_a_node_that_is_linked_to_the_upstream_gets_the_later_records_there(
    change: dict[str, Any], is_refused: bool
) -> None:
    answers, parts = parts_of({"v": [7, 0, 50]}, {"v": [7, 13, 80]})
    answers.link |= change
    if not is_refused:
        await choose_archive(parts, "v", OWNER)
        return
    with pytest.raises(PreconditionFailed, match="30 records more"):
        await choose_archive(parts, "v", OWNER)


async def test_a_stopped_node_that_may_have_more_is_named_before_and_counts_for_nothing_afterwards() -> None:
    """It may have stopped in the middle of the promotion, which was checked at its begin."""
    answers, parts = parts_of({"v": [7, 0, 50]}, {"v": [7, 13, 80]})
    answers.site.running = ["a"]
    with pytest.raises(PreconditionFailed, match=r"node b, .* does not run, .* start it"):
        await choose_archive(parts, "v", OWNER)
    await choose_drained_archive(parts, "v", OWNER)
    await choose_archive(parts, "v", OWNER.has_all())


@pytest.mark.parametrize(
    ("a", "b", "is_taken"),
    [
        ({"v": [7, 5, 50]}, {"v": [7, 0, 60]}, True),
        ({}, {"v": [7, 13, 80]}, True),
        ({"v@x": [7, 0, 50]}, {"v@x": [7, 0, 50], "v@y": [9, 2, 6]}, True),
        ({"v": [7, 0, 50]}, {"v": [7, 5, 60]}, False),
        ({"v@x": [7, 0, 50], "v@y": [9, 2, 6]}, {"v@x": [7, 0, 60]}, False),
        ({"v@x": [7, 0, 50], "v@y": [9, 2, 6]}, {"v@x": [7, 0, 60], "v@y": [9, 2, 5]}, False),
        ({"v": [7, 0, 50]}, {"v": [8, 0, 60]}, False),
    ],
    ids=[
        "later records",
        "everything",
        "a log of another node",
        "a later begin",
        "without a log",
        "a log with an earlier end",
        "another log",
    ],
)
async def test_an_archive_that_has_what_all_have_is_recovered(a: Logs, b: Logs, is_taken: bool) -> None:
    """A confirm of both sites may rest on a former holder alone, which stored until it read that it was taken over."""
    owner = VhostOwner("a", 2, claimed=2, beside=("a", "b"))
    for choose in (choose_archive, choose_drained_archive):
        answers, parts = parts_of(a, b)
        if not is_taken:
            with pytest.raises(PreconditionFailed, match="records more"):
                await choose(parts, "v", owner)
            continue
        assert await choose(parts, "v", owner)
        assert answers.noted == [VhostOwner("a", 2, claimed=2, holder="b", beside=("a", "b"))]
        answers.noted.clear()
        assert not await choose(parts, "v", owner.recovered_by("b")), "the other one has no more"
        answers.missing = 1
        with pytest.raises(PreconditionFailed, match="records more"):
            await choose(parts, "v", owner)


@pytest.mark.parametrize("trial", ["rehearse", "dry_run"])
@pytest.mark.parametrize("is_still_linked", [True, False])
async def test_a_trial_whose_link_brought_nothing_more_is_told_at_its_end(
    trial: str, is_still_linked: bool
) -> None:
    """It counted what one archive has, and nobody was told that a promotion would be refused (2026-11-30)."""
    answers, _ = parts_of({"v": [7, 0, 50]}, {"v": [7, 13, 80]})
    answers.link |= {"state": "connected"}
    done: list[str] = []

    async def work(nodes: list[str], name: str, report: object, **about: object) -> dict[str, Any]:
        done.append(name)
        answers.link |= {} if is_still_linked else {"heard_ago_ms": 60_000}
        return {node: {"vhosts": [], "queues": []} for node in nodes}

    async def contents() -> dict[str, Any]:
        return {"vhosts": [{"node": "a", "records": 3}]}

    parts = cast(Any, answers)
    parts.work, parts.site.owners, parts.site.is_shared = work, {"v": OWNER}, False
    recoveries = SiteRecoveries(cast(Any, None), cast(Any, SimpleNamespace(contents=contents)), parts, dict)
    wanted = RecoveryRequest()
    asked = (
        recoveries.rehearse(wanted, lambda event: None)
        if trial == "rehearse"
        else recoveries.dry_run(wanted, None, lambda event: None)
    )
    if is_still_linked:
        await asked
    else:
        with pytest.raises(PreconditionFailed, match="30 records more"):
            await asked
    assert done == [trial]


async def test_a_trial_that_read_another_archive_than_a_promotion_would_is_told() -> None:
    answers, _ = parts_of({"v": [7, 0, 50]}, {"v": [7, 0, 80]})
    answers.link |= {"state": "connected"}
    done: list[list[str]] = []

    async def work(nodes: list[str], name: str, report: object, **about: object) -> dict[str, Any]:
        done.append(nodes)
        answers.link |= {"heard_ago_ms": 60_000}
        return {node: {"vhosts": [], "queues": []} for node in nodes}

    async def note(vhost: str, owner: VhostOwner) -> None:
        parts.site.owners = {vhost: owner}

    parts = cast(Any, answers)
    parts.work, parts.site.owners, parts.site.is_shared, parts.site.note = work, {"v": OWNER}, False, note
    recoveries = SiteRecoveries(cast(Any, None), cast(Any, None), parts, dict)
    with pytest.raises(PreconditionFailed, match="not all records of v, "):
        await recoveries.dry_run(RecoveryRequest(), None, lambda event: None)
    assert parts.site.owners == {"v": OWNER.recovered_by("b")}
    await recoveries.dry_run(RecoveryRequest(), None, lambda event: None)
    assert done == [["a"], ["b"]]
