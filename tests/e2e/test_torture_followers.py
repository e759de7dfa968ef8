"""A leader and its followers are killed, frozen, cut off and promoted at moments nobody chose; all must be in order.

After each round, whoever leads: nothing confirmed is lost, nothing settled is back, and each follower's directory has
octet by octet what the leader's has. `make torture` runs it: LEVERET_TORTURE_ROUNDS says how long, LEVERET_SEED repeats
a run. What the machine does in between is its own, so a seed brings back the circumstances of a failure, not always the
failure. `make test` plays such rounds in virtual time: tests/unit/testing/simulation/test_worlds.py.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.sites.follower_site import FollowerSite
from tests.e2e.follower_torture import CONFIG, EVENTS, Story
from tests.e2e.test_torture import summary

ROUNDS: Final = int(os.environ.get("LEVERET_TORTURE_ROUNDS", "5"))
EVENTS_MIN, EVENTS_MAX = 2, 5


@pytest.mark.torture
@pytest.mark.timeout(3600 + 120 * ROUNDS)
@pytest.mark.parametrize("followers", [1, 2])
def test_followers_keep_everything_over_and_over(tmp_path: Path, followers: int) -> None:
    seed = os.environ.get("LEVERET_SEED") or str(random.randrange(1 << 32))
    print(f"\nLEVERET_SEED={seed} rounds={ROUNDS} followers={followers}")
    chance = random.Random(seed)
    with FollowerSite(tmp_path, followers=followers, config=CONFIG) as site:
        story = Story(site, tmp_path, chance)
        story.begin()
        for round_ in range(ROUNDS):
            events = chance.choices(
                [*EVENTS, "fail_over", "kill_leader"], k=chance.randint(EVENTS_MIN, EVENTS_MAX)
            )
            print(f"round {round_ + 1}: {', '.join(events)}: ", end="", flush=True)
            print(summary(story.round(events)), flush=True)
    print(", ".join(f"{name} {times}" for name, times in sorted(story.counts.items())))
