"""A leader and its followers are killed, frozen, cut off and promoted at moments nobody chose; all must be in order.

After each round, whoever leads: nothing confirmed is lost, nothing settled is back, and each follower's directory has
octet by octet what the leader's has. A short run is part of `make test`, always the same; `make torture` has the
long one: LEVERET_TORTURE_ROUNDS says how long, LEVERET_SEED repeats a run. What the machine does in between is its
own, so a seed brings back the circumstances of a failure, not always the failure.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.sites.follower_site import FollowerSite
from tests.e2e.follower_torture import CONFIG, EVENTS, Story
from tests.e2e.test_torture import reported

ROUNDS: Final = int(os.environ.get("LEVERET_TORTURE_ROUNDS", "5"))
EVENTS_MIN, EVENTS_MAX = 2, 5


def play(folder: Path, seed: str, rounds: int, followers: int) -> None:
    """Live through so many rounds."""
    print(f"\nLEVERET_SEED={seed} rounds={rounds} followers={followers}")
    chance = random.Random(seed)
    with FollowerSite(folder, followers=followers, config=CONFIG) as site:
        story = Story(site, folder, chance)
        story.begin()
        for round_ in range(rounds):
            events = chance.choices(
                [*EVENTS, "fail_over", "kill_leader"], k=chance.randint(EVENTS_MIN, EVENTS_MAX)
            )
            print(f"round {round_ + 1}: {', '.join(events)}: ", end="", flush=True)
            print(reported(story.round(events)), flush=True)
    print(", ".join(f"{name} {times}" for name, times in sorted(story.counts.items())))


@pytest.mark.timeout(400)
def test_followers_keep_everything_through_a_fail_over_and_whatever_else_happens(tmp_path: Path) -> None:
    seed = os.environ.get("LEVERET_SEED", "followers")
    with FollowerSite(tmp_path, followers=2, config=CONFIG) as site:
        story = Story(site, tmp_path, random.Random(seed))
        print(f"LEVERET_SEED={seed}")
        story.begin()
        for events in (
            ["drain_queue", "fail_over", "cut_link"],
            ["freeze_long", "join_fresh", "kill_all"],
        ):
            result = story.round(events)
            assert result.total.confirmed > 0


@pytest.mark.torture
@pytest.mark.timeout(3600 + 120 * ROUNDS)
@pytest.mark.parametrize("followers", [1, 2])
def test_followers_keep_everything_over_and_over(tmp_path: Path, followers: int) -> None:
    seed = os.environ.get("LEVERET_SEED") or str(random.randrange(1 << 32))
    play(tmp_path, seed, ROUNDS, followers)
