"""What a pipeline process says, and what becomes of one that says what cannot be taken."""

from __future__ import annotations

import asyncio

import pytest

from leveret.runtime.standby import pipeline_process
from leveret.runtime.standby.pipeline_process import PipelineFailed, ask

pytestmark = pytest.mark.process


def test_a_line_that_is_too_long_fails_the_task_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"data_dir": str(tmp_path_factory.mktemp("standby"))}
    assert asyncio.run(ask("contents", place)) == {"event": "done", "queues": [], "vhosts": []}
    monkeypatch.setattr(pipeline_process, "_LINE_BYTES_MAX", 10)
    with pytest.raises(PipelineFailed, match="a line of more than 10 octets"):
        asyncio.run(ask("contents", place))
