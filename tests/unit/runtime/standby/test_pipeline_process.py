"""What a pipeline process says, and what becomes of one that says what cannot be taken."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.runtime.standby import pipeline_process
from leveret.runtime.standby.pipeline_process import PipelineFailed, PipelineProcess, ask
from leveret.testing.network.waiting import until

pytestmark = pytest.mark.process


def test_a_line_that_is_too_long_fails_the_task_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"data_dir": str(tmp_path_factory.mktemp("standby"))}
    assert asyncio.run(ask("contents", place)) == {
        "event": "done",
        "queues": [],
        "vhosts": [],
        "terms": {},
    }
    monkeypatch.setattr(pipeline_process, "_LINE_BYTES_MAX", 10)
    with pytest.raises(PipelineFailed, match="a line of more than 10 octets"):
        asyncio.run(ask("contents", place))


async def test_a_task_that_is_given_up_while_it_gets_its_job_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[PipelineProcess] = []

    async def never_read(process: PipelineProcess, line: Mapping[str, Any]) -> None:
        started.append(process)
        await asyncio.Event().wait()

    monkeypatch.setattr(PipelineProcess, "send", never_read)
    task = asyncio.create_task(ask("contents", {}))
    await until(lambda: bool(started), "a process")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert started[0]._process.returncode is not None


async def test_a_process_that_cannot_be_started_fails_its_task_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that is short of descriptors for a moment: a promotion notes the failure, and may be tried again."""

    async def start(*arguments: object, **options: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    with pytest.raises(PipelineFailed, match=r"warm could not be started: .*Too many open files; try again"):
        await ask("warm", {})


async def test_octets_that_are_no_text_fail_the_task() -> None:
    class Octets:
        async def readline(self) -> bytes:
            return b'{"event": "\xff"}\n'

    process = PipelineProcess(cast(Any, SimpleNamespace(stdout=Octets())))
    with pytest.raises(PipelineFailed, match="the pipeline process wrote"):
        await anext(aiter(process.events()))
