from __future__ import annotations

import time

import pytest

from bench import process
from bench.client import LoadError
from bench.process import Sampler


def test_samples_are_some_time_apart_and_the_last_one_is_always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 10.01, 10.03, 10.04, 10.041])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    sampler = Sampler()
    for count in (1, 2, 3, 4):
        sampler.note(count)
    result = sampler.result(5)
    assert result.samples == [(10.0, 1), (10.03, 3), (10.041, 5)]
    assert result.count == 5


def test_a_failure_ends_the_process_with_its_role_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(wanted: dict[str, object]) -> process.Result:
        raise LoadError(f"nothing on port {wanted['port']}")

    monkeypatch.setattr("sys.argv", ["bench.load", '{"role": "publish", "port": 7}'])
    with pytest.raises(SystemExit, match=r"^publish: nothing on port 7$"):
        process.main(fail)
