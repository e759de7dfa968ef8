"""Whole nodes in virtual time: the books balance whatever happens, and a run is its seed alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leveret.core.queues.queue import Queue
from leveret.testing.simulation.worlds.single import SingleWorld
from leveret.testing.simulation.worlds.world import RunFailure

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def simulate(world: str, seed: int, runs: int, seconds: int = 20) -> dict[str, Any]:
    """Run seeds in a process of their own, which has the order of sets that a seed's run needs."""
    command = [sys.executable, "-m", "leveret.testing.simulation", "--formatter", "json"]
    found = subprocess.run(
        [*command, "--world", world, "--seed", str(seed), "--runs", str(runs), "--seconds", str(seconds)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-8000:]
    summary: dict[str, Any] = json.loads(found.stdout)
    return summary


@pytest.mark.parametrize(
    ("world", "seed", "confirmed"),
    [
        ("cluster", 2, 300),
        ("churn", 9, 300),
        ("letters", 1, 300),
        ("followers", 1, 500),
        ("delayed", 21, 100),
        ("single", 2, 300),
    ],
)
def test_a_run_of_each_world_keeps_what_it_confirmed_and_settled(
    world: str, seed: int, confirmed: int
) -> None:
    summary = simulate(world, seed, 1, 10 if world == "churn" else 20)
    assert summary["failed"] == 0
    assert summary["confirmed"] > confirmed


def test_a_switched_policy_whose_node_stays_down_ends_before_the_world_takes_it_for_endless() -> None:
    """A kill came while the policy was off: the switch waited a minute to delete it, and another one to put it."""
    assert simulate("sites", 20294008, 1)["failed"] == 0


def test_a_run_fails_if_a_queue_meets_a_bug_although_its_node_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch = Queue.dispatch

    def fails(queue: Queue, now_ms: int, elapsed_ms: int) -> None:
        dispatch(queue, now_ms, elapsed_ms)
        if queue.published_total > 5:
            raise IndexError("a bug")

    monkeypatch.setattr(Queue, "dispatch", fails)
    with pytest.raises(RunFailure, match="a node met an unexpected error: IndexError\\('a bug'\\)"):
        SingleWorld(2, tmp_path, skip=frozenset(range(100))).run(seconds=5)


@pytest.mark.story
def test_a_cluster_keeps_what_it_confirmed_and_settled_whatever_happens() -> None:
    summaries = [simulate("cluster", 2, 2), simulate("cluster", 7, 2)]
    assert [summary["failed"] for summary in summaries] == [0, 0]
    assert sum(summary["confirmed"] for summary in summaries) > 1_000
    assert sum(summary["settled"] for summary in summaries) > 300
    assert len(set().union(*(summary["faults"] for summary in summaries))) > 12


@pytest.mark.story
def test_queues_that_come_and_go_leave_nothing_and_lose_nothing_whatever_happens() -> None:
    summary = simulate("churn", 2, 4, 10)
    assert summary["failed"] == 0
    assert summary["confirmed"] > 1_000


@pytest.mark.story
def test_followers_keep_what_was_confirmed_and_settled_whatever_happens() -> None:
    summary = simulate("followers", 1, 3)
    assert summary["failed"] == 0
    assert summary["confirmed"] > 500


@pytest.mark.story
def test_a_delayed_follower_can_be_what_its_leader_was_whatever_happens() -> None:
    summary = simulate("delayed", 20, 5)
    assert summary["failed"] == 0
    assert summary["confirmed"] > 500
    assert {"kill", "lose power", "purge", "delete"} <= summary["faults"].keys()


@pytest.mark.story
def test_one_node_keeps_what_it_confirmed_and_settled_whatever_happens() -> None:
    summary = simulate("single", 1, 2)
    assert summary["failed"] == 0
    assert summary["confirmed"] > 500


def test_a_promoted_standby_has_all_up_to_the_covered_moment_whatever_happens() -> None:
    summary = simulate("sites", 10, 1)
    assert summary["failed"] == 0
    assert summary["confirmed"] > 50


@pytest.mark.story
def test_two_sites_that_take_turns_keep_what_they_promised_and_list_the_rest() -> None:
    summary = simulate("returns", 1, 2, 5)
    assert summary["failed"] == 0
    assert summary["faults"]["divergent"] > 0


@pytest.mark.story
@pytest.mark.parametrize("world", ["cluster", "churn"])
def test_a_run_is_its_seed_alone(world: str) -> None:
    summaries = [simulate(world, 5, 1, 5), simulate(world, 5, 1, 5)]
    for summary in summaries:
        del summary["cpu_s"]
    assert summaries[0] == summaries[1]


@pytest.mark.story
def test_a_run_does_not_depend_on_the_runs_before_it_in_its_process() -> None:
    both, first, second = (simulate("shared", *seeds, 3) for seeds in ((8, 2), (8, 1), (9, 1)))
    for count in ("confirmed", "settled"):
        assert both[count] == first[count] + second[count]
