"""What a transfer that does not keep up leaves in the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest

from leveret.runtime.standby import transfer as standby_transfer
from leveret.runtime.standby.pipeline_process import Event
from leveret.runtime.standby.transfer import LAG_LOG_INTERVAL_S, SILENT_S, TransferSupervisor
from leveret.testing.network.waiting import until
from leveret.wire.log_name import log_name

LINK = {"event": "link", "vhost": "v", "log": "v", "state": "connected", "endpoint": "a:5552"}


class Clock:
    """Both clocks of a node, which a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now_ms(self) -> int:
        return 1_000_000 + round(self.now_s * 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: found.now_s)
    monkeypatch.setattr(standby_transfer, "clock_ms", found.now_ms)
    return found


def test_a_transfer_that_lags_is_logged_now_and_then(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    transfer = TransferSupervisor(lambda: (None, ""))
    transfer._take(
        {
            "event": "stored",
            "vhost": "v",
            "log": "v",
            "next": 5,
            "newest_ms": clock.now_ms(),
            "oldest_ms": 0,
            "at_ms": 1,
        }
    )
    clock.now_s += 9.999
    transfer._take({**LINK, "committed": 9, "committed_ms": clock.now_ms()})
    assert "state=connected vhost=v upstream=a:5552 lag_records=4" in caplog.text
    transfer._log_lags(0.0)
    assert "standby_lags" not in caplog.text, "under ten seconds"
    clock.now_s += 0.001
    transfer._take({**LINK, "committed": 12, "committed_ms": clock.now_ms()})
    for log_s in (1.0, LAG_LOG_INTERVAL_S, LAG_LOG_INTERVAL_S + 1.0):
        transfer._log_lags(log_s)
    assert caplog.text.count("standby_lags vhost=v lag_records=7 lag_ms=10000") == 2


async def test_spark_elsewhere_is_warmed_up_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[str] = []

    async def warm() -> None:
        warmed.append("here")

    monkeypatch.setattr(standby_transfer, "_warm", warm)

    transfer = TransferSupervisor(lambda: (None, ""))
    transfer._take({"event": "started", "is_local": False})
    await asyncio.sleep(0)
    assert warmed == []
    transfer._take({"event": "started", "is_local": True})
    await asyncio.sleep(0)
    assert warmed == ["here"]


def test_that_nothing_is_here_is_told_only_when_that_was_said() -> None:
    transfer = TransferSupervisor(lambda: (None, ""))
    transfer._take({**LINK, "state": "connecting"})
    assert [row["is_archive_read"] for row in transfer.rows(["v", "w"])] == [False, False]
    transfer._take({"event": "archived", "vhost": "v", "log": "v", "next": 0, "newest_ms": None})
    transfer._take({"event": "archived", "vhost": "w", "log": "w", "next": 7, "newest_ms": 5})
    told = [(row["is_archive_read"], row["transferred"]) for row in transfer.rows(["v", "w"])]
    assert told == [(True, 0), (True, 7)]


def stored(vhost: str, newest_ms: int = 1) -> Event:
    return {
        "event": "stored",
        "vhost": vhost,
        "log": vhost,
        "next": 50,
        "newest_ms": newest_ms,
        "oldest_ms": 0,
        "at_ms": 1,
    }


def test_a_look_before_the_first_report_hides_nothing_of_an_upstream_clusters_logs() -> None:
    supervisor = TransferSupervisor(lambda: (None, ""))
    assert not supervisor.rows(["v"])[0]["is_archive_read"]
    log = log_name("v", "a@x#11111111")
    supervisor._take({"event": "archived", "vhost": "v", "log": log, "next": 48000, "newest_ms": 1})
    assert supervisor.rows(["v"])[0]["is_archive_read"]


def test_what_was_deleted_is_not_told_as_transferred() -> None:
    transfer = TransferSupervisor(lambda: (None, ""))
    for vhost in ("v", "w"):
        transfer._take(stored(vhost))
    transfer.forget(["v", "never"])
    transfer._take({**LINK, "committed": 50, "committed_ms": 1, "transferred": 0})
    shown = [(row["transferred"], row["lag_records"]) for row in transfer.rows(["v", "w"])]
    assert shown == [(0, 50), (50, 0)]
    transfer.forget()
    assert transfer.rows(["w"])[0]["transferred"] == 0


def test_news_of_a_vhost_that_left_the_job_count_for_nothing() -> None:
    transfer = TransferSupervisor(lambda: (None, ""))
    transfer._job = {"vhosts": ["v"]}
    transfer._take({**LINK, "committed": 0, "committed_ms": 0})
    transfer._take(
        {"event": "link", "vhost": "gone", "log": "gone", "state": "recover", "error": "no such vhost"}
    )
    assert transfer.state == "connected"


def test_a_transfer_that_begins_without_what_queues_hold_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transfer = TransferSupervisor(lambda: (None, ""))
    for missing in (11, 11, 4):
        transfer._take({**LINK, "committed": 0, "committed_ms": 0, "missing_messages": missing})
        assert transfer.rows(["v"])[0]["missing_messages"] == missing
    assert caplog.text.count("standby_begins_incomplete vhost=v missing_messages=11") == 1
    assert caplog.text.count("standby_begins_incomplete") == 1


def test_what_the_upstream_was_known_to_have_is_told_when_it_is_away_and_spark_starts_again(
    clock: Clock,
) -> None:
    transfer = TransferSupervisor(lambda: (None, ""))
    job = {"vhosts": ["v"], "endpoints": ["a:5552"]}
    transfer._take(stored("v", clock.now_ms()))
    clock.now_s += 0.3
    transfer._take({**LINK, "committed": 57, "committed_ms": clock.now_ms(), "transferred": 50})
    away = {
        "event": "link",
        "vhost": "v",
        "log": "v",
        "state": "connecting",
        "error": "refused",
        "transferred": 50,
    }

    def standing() -> tuple[str, int, int]:
        [row] = transfer.rows(["v"])
        return row["state"], row["lag_records"], row["lag_ms"]

    transfer._take(away)
    assert standing() == ("connecting", 7, 300)
    clock.now_s += 2
    transfer._begin_job(job)
    transfer._begin_job(job)
    assert standing() == ("disconnected", 7, 2300)
    transfer._begin_job(job | {"endpoints": ["b:5552"]})
    assert standing() == ("disconnected", 0, 2300), "it may be another upstream"


def test_lag_in_time_grows_while_nothing_is_heard_of_the_upstream(clock: Clock) -> None:
    transfer = TransferSupervisor(lambda: (None, ""))
    transfer._take(stored("v"))
    transfer._take({**LINK, "committed": 50, "committed_ms": 1, "transferred": 50})
    for event in ({"state": "connecting", "error": "refused"}, {"state": "connected"}):
        transfer._take({**LINK, "transferred": 50, **event})
        clock.now_s += 20
        [row] = transfer.rows(["v"])
    assert (row["lag_records"], row["lag_ms"], row["heard_ago_ms"]) == (0, 40_000, 40_000)
    assert row["newest_age_ms"] == clock.now_ms() - 1
    transfer._take({**LINK, "committed": 50, "committed_ms": 1, "transferred": 50})
    [row] = transfer.rows(["v"])
    assert (row["lag_records"], row["lag_ms"], row["heard_ago_ms"]) == (0, 0, 0)


def test_a_process_that_hangs_is_not_told_as_connected(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    transfer = TransferSupervisor(lambda: (None, ""))
    transfer._take({**LINK, "committed": 0, "committed_ms": 0})
    for silent_s, state in ((SILENT_S - 1, "connected"), (1, "connecting"), (1, "connecting")):
        clock.now_s += silent_s
        transfer._log_silence()
        [row] = transfer.rows(["v"])
        assert (row["state"], transfer.state) == (state, state)
        assert ("has reported nothing for" in row["error"]) == (state == "connecting")
    assert caplog.text.count("standby_transfer_silent") == 1
    transfer._take({**LINK, "committed": 0, "committed_ms": 0})
    assert (transfer.state, transfer.rows(["v"])[0]["error"]) == ("connected", "")


def test_after_a_start_it_is_told_how_far_behind_the_archive_is(clock: Clock) -> None:
    transfer = TransferSupervisor(lambda: (None, ""))
    newest_ms = clock.now_ms() - 3_000
    transfer._take({"event": "archived", "vhost": "v", "log": "v", "next": 50, "newest_ms": newest_ms})
    [row] = transfer.rows(["v"])
    assert (row["transferred"], row["lag_records"], row["last_timestamp"]) == (50, 0, newest_ms)
    assert (row["lag_ms"], transfer.has_heard("v")) == (3_000, False), "nobody knows what there is"
    transfer._take({**LINK, "committed": 57, "committed_ms": clock.now_ms(), "transferred": 50})
    [row] = transfer.rows(["v"])
    assert (row["lag_records"], row["lag_ms"], transfer.has_heard("v")) == (7, 3_000, True)
    transfer._take(stored("v"))
    transfer._take({"event": "archived", "vhost": "v", "log": "v", "next": 40, "newest_ms": 0})
    assert transfer.rows(["v"])[0]["last_timestamp"] == 1, "what came since is newer"


def test_why_nothing_is_stored_is_told_until_something_is_or_nothing_is_left() -> None:
    def standing() -> tuple[str, str]:
        [row] = transfer.rows(["v"])
        return row["state"], row["error"]

    for works in ({**LINK, "committed": 50, "committed_ms": 1}, stored("v")):
        transfer = TransferSupervisor(lambda: (None, ""))
        transfer._take({"event": "archived", "vhost": "v", "log": "v", "next": 40, "newest_ms": 1})
        transfer._take({"event": "restarting", "error": "No space left on device"})
        transfer._take({**LINK, "committed": 50, "committed_ms": 1})
        assert standing() == ("connected", "No space left on device")
        transfer._take({**works, "transferred": 50} if works["event"] == "link" else works)
        assert standing() == ("connected", "")


def test_a_manifest_that_is_older_than_its_files_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    TransferSupervisor(lambda: (None, ""))._take(
        {"event": "manifest_is_older", "error": "it is an older copy"}
    )
    assert caplog.messages == ["standby_manifest_is_older error=it is an older copy action=keep_the_files"]


@pytest.mark.parametrize("where", ["start", "watch"])
async def test_a_bug_ends_the_process_and_not_the_transfer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """Its task would end unseen, and nothing be transferred any more."""
    started: list[FakeProcess] = []

    class FakeProcess:
        error = ""

        def __init__(self) -> None:
            self.is_over = asyncio.Event()

        @classmethod
        async def start(cls, task: str, job: dict[str, object]) -> FakeProcess:
            started.append(cls())
            if where == "start" and len(started) == 1:
                raise KeyError("event")
            return started[-1]

        async def events(self) -> AsyncIterator[Event]:
            await self.is_over.wait()
            nothing: list[Event] = []
            for event in nothing:
                yield event

        async def send(self, line: dict[str, object]) -> None:
            raise KeyError("job")

        async def stop(self) -> None:
            self.is_over.set()

    jobs = iter(range(1_000_000))
    job: dict[str, object] = {"endpoints": [], "vhosts": []}
    monkeypatch.setattr(standby_transfer, "PipelineProcess", FakeProcess)
    monkeypatch.setattr(standby_transfer, "BACKOFF_MIN_S", 0.001)
    monkeypatch.setattr(standby_transfer, "WATCH_INTERVAL_S", 0.001)
    transfer = TransferSupervisor(lambda: ({**job, "number": next(jobs) if where == "watch" else 0}, ""))
    await transfer.start()
    await until(lambda: len(started) > 1, "another process")
    assert transfer.runs
    await transfer.stop()
    assert "Traceback" in caplog.text


def test_the_logs_that_have_records_here_are_known_by_their_ids() -> None:
    transfer = TransferSupervisor(lambda: (None, ""))
    for log, log_id, transferred in (("v", 7, 5), ("v\0b#1", 8, 0), ("v\0c#2", 0, 5), ("w", 9, 5)):
        vhost = log[0]
        transfer._take({**LINK, "vhost": vhost, "log": log, "log_id": log_id, "transferred": transferred})
    assert transfer.origins("v") == {"v": 7}


def test_a_vhost_that_comes_or_goes_leaves_what_is_told_of_the_others(clock: Clock) -> None:
    """Each deletion of a vhost restarted the transfer of all, which were told as connecting meanwhile."""
    transfer = TransferSupervisor(lambda: (None, ""))
    job = {"vhosts": ["v", "w"], "origins": {}, "endpoints": ["a:5552"]}
    transfer._begin_job(job)
    for vhost in ("v", "w"):
        transfer._take({**LINK, "vhost": vhost, "log": vhost, "committed": 0, "committed_ms": 0})
    told = transfer._begin_job(job | {"vhosts": ["v"]})
    assert told == {"command": "vhosts", "vhosts": ["v"], "origins": {}}
    assert (transfer.state, [*transfer._links]) == ("connected", ["v"])
    other = job | {"vhosts": ["v"], "endpoints": ["b:5552"]}
    assert transfer._begin_job(other) == {"command": "job", "job": other}
    assert transfer.state == "disconnected"
