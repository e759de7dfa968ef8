from __future__ import annotations

import pytest

from bench import selftest
from bench.selftest import SinkNode

pytestmark = pytest.mark.process


def test_the_selftest_moves_messages_on_every_path() -> None:
    """How many is for `python -m bench --selftest` to judge, on a machine that does nothing else."""
    outcomes = selftest.run(0.3, 0.1)
    assert outcomes
    assert {name for name, one in outcomes.items() if one.rate <= 0} == set()


def test_a_sink_ends_when_its_input_does() -> None:
    assert SinkNode().start().stop() == 0
