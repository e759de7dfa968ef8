from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from leveret.pipeline.jobs import progress
from leveret.pipeline.jobs.progress import Inbox, report

pytestmark = pytest.mark.process

TASK = """
from leveret.pipeline.jobs.parent_channel import ParentChannel
from leveret.pipeline.jobs.progress import Inbox

console = ParentChannel()
with Inbox() as inbox:
    console.say("started", address=inbox.address)
    console.end_with_parent()
    console.next_command()
"""


def test_news_arrive_in_order() -> None:
    with Inbox() as inbox:
        for number in range(3):
            report(inbox.address, "stored", next=number)
        assert inbox.wait(5) == [{"event": "stored", "next": number} for number in range(3)]
        assert inbox.wait(0) == []


def test_a_wait_ends_at_once_when_another_thread_wakes_it_and_loses_no_news() -> None:
    with Inbox() as inbox:
        Thread(target=inbox.wake).start()
        assert inbox.wait(600) == []
        inbox.wake()
        report(inbox.address, "stored")
        assert inbox.wait(600) == [{"event": "stored"}]


def test_no_news_of_many_at_once_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of many vhosts reports one file of each; a socket of this kind holds ten (2026-11-29)."""
    monkeypatch.setattr(progress, "ROOM_TIMEOUT_S", 60.0)

    def report_all() -> None:
        for number in range(100):
            report(inbox.address, "stored", next=number)

    with Inbox() as inbox:
        batch = Thread(target=report_all)
        batch.start()
        found = [inbox.wait(60)]
        while len(found[-1]) and sum(map(len, found)) < 100:
            found.append(inbox.wait(60))
        batch.join()
    assert [each["next"] for some in found for each in some] == list(range(100))


def test_news_to_nobody_are_dropped() -> None:
    with Inbox() as inbox:
        address = inbox.address
    report(address, "stored")


def test_a_process_whose_input_ends_leaves_no_address_behind(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", TASK]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        assert len(list(tmp_path.iterdir())) == 1
        process.stdin.close()
        assert process.wait(30) == 0
    assert list(tmp_path.iterdir()) == []
