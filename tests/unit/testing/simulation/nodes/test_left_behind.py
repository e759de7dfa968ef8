"""What is left of a deleted queue is found wherever a part of a node refers to it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leveret.core.queues import queue_types
from leveret.core.queues.queue import Queue
from leveret.core.replication.promises import Promises
from leveret.model import definitions as d
from leveret.testing.simulation.nodes.left_behind import in_memory, on_disk


def queue(name: str = "gone") -> Queue:
    return queue_types.make_queue(d.Queue(vhost="/", name=name), lambda queue, offset: [])


def _keeps(kept: Any) -> Any:
    return lambda: kept


@pytest.mark.parametrize(
    "keep",
    [
        lambda part: {("/", "gone"): 1},
        lambda part: {part: 1},
        lambda part: [("queues/0001", part)],
        lambda part: partial(print, part),
        _keeps,
        lambda part: {"a": [{part}]},
    ],
)
def test_a_mention_is_found_in_tables_lists_partials_and_closures(keep: Any) -> None:
    promises: Any = Promises()
    assert in_memory({"parts": promises}, ("gone",)) == []
    promises._waiting["log"] = [keep(queue())]
    [found, *_] = in_memory({"parts": promises}, ("gone",))
    assert found.startswith("parts._waiting")


def test_queues_that_are_there_are_no_mention() -> None:
    assert in_memory({"parts": {("/", "there"): queue("there")}}, ("gone",)) == []


def test_directories_of_logs_are_named(tmp_path: Path) -> None:
    assert on_disk(tmp_path) == []
    (tmp_path / "queues" / "0001").mkdir(parents=True)
    assert on_disk(tmp_path) == ["queues/0001"]
