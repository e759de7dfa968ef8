"""The pace of simulated publishers: fast at first, slower once a run has many messages."""

from __future__ import annotations

from random import Random

import pytest

from leveret.testing.simulation.applications.publishers import FAST_COPIES, SLOWER, PublishingPace


@pytest.mark.parametrize("pace", [PublishingPace(0.02), PublishingPace(0.005, 30, 5.0)])
def test_publishers_of_a_run_with_many_messages_make_longer_pauses(pace: PublishingPace) -> None:
    first = [pace.pause_s(chance, FAST_COPIES) for chance in map(Random, range(50))]
    later = [pace.pause_s(chance, FAST_COPIES + 1) for chance in map(Random, range(50))]
    assert later == pytest.approx([SLOWER * each for each in first])
