"""A document that the disk altered is told, and so is a plan's run: neither is taken for what was written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import StorageError
from leveret.pipeline.archive.documents import line_of, read_document, value_of, write_document
from leveret.pipeline.archive.recovery_plan import PlanDirectory, QueueOrder, QueueOutcome, read_order
from leveret.pipeline.recovery.outcomes import outcome_of
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message


class Example(msgspec.Struct):
    """Some document."""

    name: str
    counts: dict[str, int]


WRITTEN = Example("größer", {"a": 1, "b": 22})


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_document(tmp_path / "it", WRITTEN)
    assert read_document(tmp_path / "it", Example) == WRITTEN
    write_document(tmp_path / "it", {"k": 1})
    assert read_document(tmp_path / "it", dict[str, int]) == {"k": 1}


def test_a_document_of_the_first_archives_is_read(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(msgspec.json.encode(WRITTEN))
    assert read_document(tmp_path / "it", Example) == WRITTEN


@given(at=st.integers(0, 1 << 10), bit=st.integers(0, 7))
def test_one_bit_of_a_document_is_noticed(at: int, bit: int) -> None:
    octets = bytearray(line_of(WRITTEN).removesuffix(b"\n"))
    octets[at % len(octets)] ^= 1 << bit
    with pytest.raises(msgspec.DecodeError):
        value_of(bytes(octets), Example)


@given(end=st.integers(0, 1 << 10))
def test_a_document_that_is_cut_off_is_noticed(end: int) -> None:
    line = line_of(WRITTEN).removesuffix(b"\n")
    with pytest.raises(msgspec.DecodeError):
        value_of(line[: end % len(line)], Example)


@pytest.fixture(scope="module")
def plan(new_path: Callable[[], Path]) -> PlanDirectory:
    """Of two queues."""
    upstream = StandbyUpstream()
    for queue in ("q", "r"):
        upstream.publish("/", queue, [stored_message(b"%d" % n, b"", queue.encode()) for n in range(40)])
    plan = freeze_plan(transfer(upstream, new_path()), "/")
    assert plan is not None
    return plan


def orders(plan: PlanDirectory) -> dict[str, QueueOrder]:
    parts = plan.load().parts
    return {part.queue: read_order(plan.runs, [part]) for part in parts}


@given(at=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_one_bit_of_a_run_is_noticed_or_changes_nothing(plan: PlanDirectory, at: int, bit: int) -> None:
    [run] = plan.runs.iterdir()
    whole = run.read_bytes()
    before = orders(plan)
    octets = bytearray(whole)
    octets[at % len(octets)] ^= 1 << bit
    run.write_bytes(bytes(octets))
    try:
        after = orders(plan)
    except StorageError:
        return
    finally:
        run.write_bytes(whole)
    for queue, order in before.items():
        for column in ("places", "epochs", "offsets", "timestamps"):
            assert (getattr(after[queue], column) == getattr(order, column)).all()


def test_a_plan_and_its_outcome_that_are_damaged_name_the_file(plan: PlanDirectory) -> None:
    frozen = plan.path / "plan.json"
    whole = frozen.read_bytes()
    try:
        frozen.write_bytes(whole.replace(b'"rows":40', b'"rows":41', 1))
        with pytest.raises(StorageError, match=re.escape(f"{frozen}: it was altered")):
            plan.load()
    finally:
        frozen.write_bytes(whole)
    queues = [QueueOutcome(queue=name, messages=40, first_ms=1, last_ms=2) for name in "qr"]
    plan.finish(outcome_of(plan.load(), queues))
    done = plan.path / "DONE"
    done.write_bytes(done.read_bytes().replace(b'"messages":40', b'"messages":39', 1))
    with pytest.raises(StorageError, match=re.escape(f"{done}: it was altered")):
        plan.outcome()
