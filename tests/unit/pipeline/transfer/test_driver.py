"""When a drain of the transfer ends; the rest of the driver needs Spark, and is in tests/pipeline/test_transfer.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.files.objects import StoreFailed
from leveret.pipeline.jobs.job import LoginCredentials, TransferJob
from leveret.pipeline.jobs.progress import Event
from leveret.pipeline.transfer import driver as module
from leveret.pipeline.transfer.driver import Transfer
from leveret.testing.network.ports import wait_until
from leveret.wire.log_name import log_name


class ParentChannel:
    """Keeps what is passed on, and hands out commands."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.to_send: list[Event] = []

    def say(self, event: str, **details: Any) -> None:
        self.pass_on({"event": event, **details})

    def pass_on(self, event: Event) -> None:
        self.events.append(event)

    def commands(self) -> list[Event]:
        commands, self.to_send = self.to_send, []
        return commands


class Inbox:
    """Nothing is reported unless a test does."""

    address = "nobody"

    def wait(self, timeout_s: float) -> list[Event]:
        return []


@pytest.fixture
def parent() -> ParentChannel:
    return ParentChannel()


@pytest.fixture
def driver(tmp_path: Path, parent: ParentChannel) -> Transfer:
    nobody = LoginCredentials(username="", password="")
    job = TransferJob(
        data_dir=str(tmp_path), reference="eu.2", endpoints=[], credentials=nobody, vhosts=["/"]
    )
    spark: Any = None
    stand_ins: Any = Inbox(), parent
    return Transfer(job, spark, *stand_ins)


def link(log: str, state: str = "connected", transferred: int = 0, **details: Any) -> Event:
    return {"event": "link", "vhost": "/", "log": log, "state": state, "transferred": transferred} | details


def drain(driver: Transfer, parent: ParentChannel) -> None:
    parent.to_send.append({"command": "drain", "timeout_ms": 3_600_000})
    driver._pass_on([])
    assert not driver._is_drained()


def test_all_is_here_also_if_the_report_of_the_last_file_was_lost(
    driver: Transfer, parent: ParentChannel
) -> None:
    """Such as that of the eleventh vhost of a batch: its lag was shown until its next record (2026-11-29)."""
    driver._pass_on([{"event": "stored", "log": "/", "next": 7}])
    drain(driver, parent)
    driver._pass_on([link("/", transferred=10, committed=10)])
    assert driver._has_all()
    driver._pass_on([{"event": "stored", "log": "/", "next": 12}, link("/", transferred=10, committed=12)])
    assert driver._has_all(), "the source had not read the manifest again"
    assert parent.events[-1]["transferred"] == 12


def test_a_log_of_an_earlier_query_that_no_later_one_knows_is_not_waited_for(
    driver: Transfer, parent: ParentChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of an upstream that did not answer yet, for instance: each promotion took 20 s longer (2026-11-29)."""

    def fail() -> None:
        raise StoreFailed("the disk is full")

    driver._pass_on([link("/", "connecting", error="no endpoint answers")])
    monkeypatch.setattr(driver, "_start", fail)
    driver._run_query()
    drain(driver, parent)
    driver._pass_on([link(log_name("/", "n1"), transferred=10, committed=10)])
    assert driver._is_drained()


def test_spark_is_warmed_up_once_and_not_before_a_link_works(
    tmp_path: Path, parent: ParentChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed: list[object] = []
    monkeypatch.setattr(module, "warm_up", warmed.append)
    nobody = LoginCredentials(username="", password="")
    job = TransferJob(
        data_dir=str(tmp_path), reference="eu.2", endpoints=[], credentials=nobody, vhosts=["/"]
    )
    spark: Any = SimpleNamespace(sparkContext="context")
    stand_ins: Any = Inbox(), parent
    transfer = Transfer(job, spark, *stand_ins, warms_up=True)
    transfer._pass_on([link("/", "connecting")])
    assert not transfer._is_drained()
    assert warmed == []
    for _ in range(2):
        transfer._pass_on([link("/", committed=0)])
    wait_until(lambda: warmed == ["context"], "the warm-up", 60)


def test_a_vhost_that_comes_or_goes_leaves_the_query_of_the_others_alone(
    driver: Transfer, parent: ParentChannel
) -> None:
    def follow(*vhosts: str) -> None:
        parent.to_send.append({"command": "vhosts", "vhosts": list(vhosts)})
        driver._pass_on([])

    driver._pass_on([link("/", committed=0)])
    follow("/", "v")
    assert (driver._job.vhosts, driver._next_job) == (["/", "v"], None)
    assert parent.events[-1]["vhost"] == "v", "what the archive has of it"
    driver._pass_on([link("v", vhost="v", committed=0)])
    follow("/")
    assert (driver._job.vhosts, driver._next_job, [*driver._links]) == (["/"], None, ["/"])
    driver._pass_on([link("v", "recover", vhost="v", error="no such vhost")])
    assert [*driver._links] == ["/"], "it was in flight"
    assert driver._taken != driver._followed["number"]
    driver._pass_on([{"event": "taken", "number": driver._followed["number"]}])
    assert driver._taken == driver._followed["number"]
    assert "taken" not in {event["event"] for event in parent.events}
    follow("/", "v")
    assert driver._next_job is not None, "the query goes on from offsets of the one that left it"
    assert driver._next_job.vhosts == ["/", "v"]


def test_more_vhosts_than_a_report_takes_begin_another_query(driver: Transfer, parent: ParentChannel) -> None:
    parent.to_send.append({"command": "vhosts", "vhosts": [f"{number:0200}" for number in range(200)]})
    driver._pass_on([])
    assert driver._next_job is not None


def test_an_older_manifest_is_reported_once(
    driver: Transfer, parent: ParentChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest(Path("archive"))
    for lost in ([Path("archive/data/vhost-a/1")], [Path("archive/data/vhost-a/1")], [], []):
        monkeypatch.setattr(module, "once_named", lambda manifest, lost=lost: lost)
        driver._say_lost(manifest)
    [event] = parent.events
    assert event["event"] == "manifest_is_older"
    assert "does not name 1 files" in event["error"]
