"""runtime.logs.definitions_store: a log far larger than what is live is compacted, and no step of that is a risk."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model import definitions as d
from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.logs import definitions_store as store_module
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.definitions_store import DefinitionsStore
from leveret.storage.log import Log
from leveret.testing.simulation.machine.disk import SimulatedDisk
from tests.unit.memory import scratch
from tests.unit.runtime.logs.test_definitions_store import CHANGE, put

State = dict[str, dict[tuple[str, ...], d.AnyEntity]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact above a few records, two at a time."""
    monkeypatch.setattr(store_module, "COMPACT_BYTES_MIN", 1200)
    monkeypatch.setattr(store_module, "COMPACT_RATIO", 2)
    monkeypatch.setattr(store_module, "RELOG_AT_ONCE", 2)


class Rounds(GroupCommit):
    """Group commit whose rounds are played by hand."""

    def play(self) -> None:
        for log in self._dirty:
            log.sync()
        promises, self._promises = self._promises, []
        for promise in promises:
            promise()


def opened(directory: Path) -> tuple[DefinitionsStore, Rounds]:
    commit = Rounds(fsync=True, on_failure=lambda error: None)
    store = DefinitionsStore(Log(directory, epoch=1), commit, lambda: 7)
    store.compact_at_start()
    return store, commit


def state(definitions: d.Definitions) -> State:
    return {kind: dict(entities) for kind, entities in definitions.by_kind.items()}


def churn(number: int) -> list[d.Change]:
    """A queue comes, one goes, one of three parameters changes: at most eight entities live."""
    queue = d.Queue(name=f"q{number}", vhost="v", epoch=number + 1)
    return [
        d.Put(queue),
        d.Delete("queues", ("v", f"q{number - 4}")),
        put(str(number % 3), "x" * 40 + str(number)),
    ]


def test_the_log_of_a_node_that_declares_and_deletes_for_months_stays_small(tmp_path: Path) -> None:
    store, commit = opened(tmp_path)
    largest = 0
    for number in range(400):
        store.append(churn(number))
        commit.play()
        largest = max(largest, sum(path.stat().st_size for path in tmp_path.iterdir()))
    expected, offset = state(store.definitions), store.next_offset
    assert largest < 10_000
    assert offset > 1200
    store.close()
    again, _ = opened(tmp_path)
    assert state(again.definitions) == expected
    assert again.next_offset >= offset
    again.close()


def test_epochs_stay_unique_over_compactions_and_restarts(tmp_path: Path) -> None:
    last = 0
    for _ in range(20):
        store, commit = opened(tmp_path)
        assert store.last_epoch >= last
        for epoch in range(store.last_epoch + 1, store.last_epoch + 20):
            queue = d.Queue(name="q", vhost="v", epoch=epoch)
            store.append([d.Put(queue), d.Delete("queues", queue.key)])
            commit.play()
            last = epoch
        store.close()


def test_a_large_log_is_compacted_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "COMPACT_BYTES_MIN", 1 << 30)
        store, _ = opened(tmp_path)
        for number in range(100):
            store.append(churn(number))
        store.close()
    expected, offset = state(store.definitions), store.next_offset
    before = sum(path.stat().st_size for path in tmp_path.iterdir())
    again, _ = opened(tmp_path)
    assert state(again.definitions) == expected
    assert again.next_offset > offset
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < before / 10
    again.close()
    third, _ = opened(tmp_path)
    assert state(third.definitions) == expected
    third.close()


def test_a_log_that_is_large_because_much_is_live_is_left_alone(tmp_path: Path) -> None:
    store, commit = opened(tmp_path)
    for number in range(60):
        store.append([put(str(number))])
        commit.play()
    store.close()
    offset = store.next_offset
    again, _ = opened(tmp_path)
    assert again.next_offset == offset
    again.close()


@settings(max_examples=60)
@given(st.lists(st.lists(CHANGE, min_size=1, max_size=5), max_size=60), st.data())
def test_compacted_or_not_a_log_says_the_same(batches: list[list[d.Change]], data: st.DataObject) -> None:
    expected = d.Definitions()
    with scratch() as directory:
        store, commit = opened(directory)
        for batch in batches:
            store.append(batch)
            for change in batch:
                expected.apply(change)
            match data.draw(st.sampled_from(["go on", "commit", "kill", "stop"])):
                case "commit":
                    commit.play()
                case "kill":
                    store._log.close()
                    store, commit = opened(directory)
                case "stop":
                    store.close()
                    store, commit = opened(directory)
            assert state(store.definitions) == state(expected)
        store._log.close()
        again, _ = opened(directory)
        assert state(again.definitions) == state(expected)
        again.close()


# -- faults -----------------------------------------------------------------------------------


class PowerCut(BaseException):
    """The machine is gone."""


class Faults:
    """Counts what is asked of the disk, and does not do number `at`."""

    def __init__(
        self, patch: pytest.MonkeyPatch, at: int, error: BaseException, *, half: bool = False
    ) -> None:
        self.count = 0
        self._at = at
        self._error = error
        self._half = half
        self._pwritev = os.pwritev
        for name in ("pwritev", "fdatasync", "fsync"):
            patch.setattr(os, name, self._wrap(getattr(os, name)))
        for name in ("unlink", "rename"):
            patch.setattr(Path, name, self._wrap(getattr(Path, name)))

    def _wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> Any:
            self.count += 1
            if self.count == self._at:
                if self._half and call is self._pwritev:
                    fd, (head, data, trailer), at = args
                    os.pwrite(fd, (head + data + trailer)[: len(data) // 2 + 10], at)
                raise self._error
            return call(*args, **more)

        return called


def run(directory: Path, rounds: int) -> tuple[list[State], int]:
    """Churn with a commit each second batch; return the state after each batch and how many are durable."""
    directory.mkdir(exist_ok=True)
    store, commit = opened(directory)
    known = d.Definitions()
    states, durable = [state(known)], 0
    try:
        for number in range(rounds):
            batch = churn(number)
            for change in batch:
                known.apply(change)
            states.append(state(known))
            store.append(batch)
            if number % 2:
                commit.play()
                durable = number + 1
    except PowerCut:
        pass
    finally:
        store._log.close()
    return states, durable


@pytest.mark.parametrize("half", [False, True])
def test_killed_at_any_call_to_the_disk_nothing_durable_is_lost(tmp_path: Path, half: bool) -> None:
    at = calls = 0
    while at <= calls:
        at += 1
        directory = tmp_path / str(at)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, at, PowerCut(), half=half)
            states, durable = run(directory, 50)
            calls = max(calls, faults.count)
        again, _ = opened(directory)
        assert state(again.definitions) in states[durable:]
        again.close()
        shutil.rmtree(directory)
    assert calls > 60


@settings(max_examples=150)
@given(st.integers(1, 90), st.integers(0, 400), st.integers(0, 1 << 32))
def test_power_may_go_at_any_call_and_take_any_part_of_what_was_not_synced(
    rounds: int, at: int, seed: int
) -> None:
    with scratch() as directory, SimulatedDisk(directory) as disk:
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, at, PowerCut())
            states, durable = run(directory / "log", rounds)
        disk.power_lost(directory / "log", directory / "left", random.Random(seed))
        says_one_of(directory / "left", states[durable:])


def says_one_of(directory: Path, allowed: list[State]) -> None:
    """Open it, twice: what it says is one of `allowed`, and stays."""
    first, _ = opened(directory)
    found = state(first.definitions)
    assert found in allowed
    first.close()
    second, _ = opened(directory)
    assert state(second.definitions) == found
    second.close()


def test_a_disk_that_fails_at_any_call_costs_nothing_that_was_taken(tmp_path: Path) -> None:
    at = calls = 0
    while at <= calls:
        at += 1
        directory = tmp_path / str(at)
        with pytest.MonkeyPatch.context() as patch:
            store, commit = opened(directory)
            faults = Faults(patch, at, OSError(28, "No space left on device"))
            known = d.Definitions()
            for number in range(40):
                batch = churn(number)
                with suppress(Exception):
                    store.append(batch)
                    for change in batch:
                        known.apply(change)
                with suppress(StorageError):
                    commit.play()
            calls = max(calls, faults.count)
        assert state(store.definitions) == state(known)
        store._log.close()
        again, _ = opened(directory)
        assert state(again.definitions) == state(known)
        again.close()
        shutil.rmtree(directory)
    assert calls > 60


def test_damage_in_a_compacted_log_is_told_and_nothing_is_changed(tmp_path: Path) -> None:
    store, commit = opened(tmp_path)
    for number in range(100):
        store.append(churn(number))
        commit.play()
    store.close()
    oldest = min(tmp_path.iterdir())
    octets = bytearray(oldest.read_bytes())
    octets[60] ^= 1
    oldest.write_bytes(octets)
    with pytest.raises(Corrupt):
        opened(tmp_path)
    assert oldest.read_bytes() == octets


# -- marks ------------------------------------------------------------------------------------


def test_marks_of_queues_with_a_log_survive_compaction_as_long_as_their_queue(tmp_path: Path) -> None:
    store, commit = opened(tmp_path)
    kept = d.Queue(name="kept", vhost="v", epoch=1)
    store.append([d.Put(kept)])
    store.record_existence(1)
    for number in range(1, 100):
        store.append(churn(number))
        store.record_existence(number + 1)
        commit.play()
    store.close()
    again, _ = opened(tmp_path)
    live = [queue.epoch for queue in again._queues()]
    assert len(live) == 5
    assert all(again.has_log(epoch) for epoch in live)
    assert again._marked == set(live)
    again.close()


def test_the_epoch_of_a_mark_is_never_given_again(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    store.record_existence(77)
    store.close()
    again, _ = opened(tmp_path)
    assert again.last_epoch == 77
    assert not again.has_log(77)
    again.close()
