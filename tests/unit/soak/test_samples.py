"""tests.soak.samples: what grows is told from what takes its size and from what comes and goes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.samples import Sample, sample, trends

HOUR_S = 3600.0
SAMPLES = 60


def samples(resident_mb: list[float]) -> list[Sample]:
    return [
        Sample(number * HOUR_S / len(resident_mb), value, 50 + number % 3, 11, 5.0)
        for number, value in enumerate(resident_mb)
    ]


def test_a_leak_shows_with_its_slope_under_noise() -> None:
    chance = random.Random(7)
    found = trends(samples([100 + 0.5 * number + chance.uniform(-5, 5) for number in range(SAMPLES)]))
    assert found["resident_mb"].hourly == pytest.approx(30, rel=0.2)
    assert found["resident_mb"].last - found["resident_mb"].first == pytest.approx(15, rel=0.4)
    assert found["descriptors"].hourly == pytest.approx(0, abs=0.5)
    assert found["threads"] == (11, 11, 0)


def test_what_takes_its_size_in_the_first_third_does_not_grow() -> None:
    found = trends(samples([100 + 10 * min(number, SAMPLES // 3) for number in range(SAMPLES)]))
    assert found["resident_mb"].hourly == 0


def test_a_few_peaks_move_no_trend() -> None:
    found = trends(samples([400.0 if number in (40, 41, 58) else 100.0 for number in range(SAMPLES)]))
    assert found["resident_mb"].hourly == 0


@pytest.mark.process
def test_a_sample_counts_descendants_and_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(bytes(2_000_000))
    alone = sample(os.getpid(), tmp_path, 0.0)
    assert alone.disk_mb == pytest.approx(2.0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        both = sample(os.getpid(), tmp_path, 1.0)
        child.communicate(b"\n")
    assert both.threads > alone.threads
    assert both.descriptors > alone.descriptors
    assert sample(child.pid, tmp_path / "missing", 2.0) == (2.0, 0, 0, 0, 0)
