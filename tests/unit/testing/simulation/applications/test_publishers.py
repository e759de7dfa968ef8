"""The pace of simulated publishers: fast at first, slower once a run has many messages."""

from __future__ import annotations

from random import Random

import pytest

from leveret.testing.applications.run_books import RunBooks
from leveret.testing.simulation.applications.publishers import FAST_COPIES, SLOWER, PublishingPace
from leveret.testing.simulation.applications.users import SimulatedUsers
from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.network import SimulatedNetwork


@pytest.mark.parametrize("pace", [PublishingPace(0.02), PublishingPace(0.005, 30, 5.0)])
def test_publishers_of_a_run_with_many_messages_make_longer_pauses(pace: PublishingPace) -> None:
    first = [pace.pause_s(chance, FAST_COPIES) for chance in map(Random, range(50))]
    later = [pace.pause_s(chance, FAST_COPIES + 1) for chance in map(Random, range(50))]
    assert later == pytest.approx([SLOWER * each for each in first])


def test_a_run_may_have_another_number_of_copies_after_which_publishers_are_slower() -> None:
    pace = PublishingPace(0.02, fast_copies=50)
    assert pace.pause_s(Random(1), 51) == pytest.approx(SLOWER * pace.pause_s(Random(1), 50))
    network = SimulatedNetwork(VirtualLoop(Random(1)), Random(1))
    books = RunBooks()
    users = SimulatedUsers(network, (), (), books, 1, fast_copies=50)
    assert users.publisher(("q",), PublishingPace(0.02)).pace.fast_copies == 50
    assert users.owner("q", 1.0).pace.fast_copies == 50
