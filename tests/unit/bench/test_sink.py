from __future__ import annotations

from bench import selftest
from bench.selftest import SinkNode


def test_the_load_generator_outruns_any_broker() -> None:
    """A tenth of what `python -m bench --selftest` asks for: the machine may be busy with other tests."""
    outcomes = selftest.run(0.3, 0.1)
    assert {name for name, one in outcomes.items() if one.rate < selftest.RATE_MIN / 10} == set()


def test_a_sink_ends_when_its_input_does() -> None:
    assert SinkNode().start().stop() == 0
