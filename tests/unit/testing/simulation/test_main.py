"""The command that runs simulated worlds: it counts what has run, however it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from leveret.testing.simulation import __main__ as command
from leveret.testing.simulation.hunt import RunOutcome
from leveret.testing.simulation.worlds.world import RunReport


@pytest.fixture(autouse=True)
def hash_seed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_runs_that_are_broken_off_are_counted_and_each_has_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A world whose seeds take a minute each was broken off, and nobody knew how many had run."""

    def play(world: str, seed: int, seconds: float, *, often: str, copies: int) -> RunOutcome:
        assert copies == 100
        if seed == 9:
            signal.raise_signal(signal.SIGTERM)
        report = RunReport(seed, 50.0, 1000, 10, 4, 6, {"kill": 1}, 5)
        return RunOutcome(seed, report, None, 1.5)

    monkeypatch.setattr(command, "play", play)
    assert command.main(["--world", "followers", "--seed", "7", "--runs", "100", "--copies", "100"]) == 0
    told = capsys.readouterr()
    assert "followers: 2 runs from seed 7, 0 failed" in told.out
    assert "20 confirmed, 8 settled, 10 decisions; 2 kill" in told.out
    assert [line for line in told.err.splitlines() if line] == [
        "followers: seed 7, 10 confirmed, 1.5 s of processor time",
        "followers: seed 8, 10 confirmed, 1.5 s of processor time",
        "followers: broken off in seed 9",
    ]
