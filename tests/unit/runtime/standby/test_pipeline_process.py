"""What a pipeline process says, and what becomes of one that says what cannot be taken."""

from __future__ import annotations

import asyncio
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
    assert asyncio.run(ask("contents", place)) == {"event": "done", "queues": [], "vhosts": []}
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


async def test_octets_that_are_no_text_fail_the_task() -> None:
    class Octets:
        async def readline(self) -> bytes:
            return b'{"event": "\xff"}\n'

    process = PipelineProcess(cast(Any, SimpleNamespace(stdout=Octets())))
    with pytest.raises(PipelineFailed, match="the pipeline process wrote"):
        await anext(aiter(process.events()))
