from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from bench import contenders, runner
from bench.client import LoadError
from bench.contenders import Checkout, Node
from bench.rows import Reading, Row, Scenario, Settings, Target
from bench.runner import run
from bench.selftest import SinkNode

ROW = Row("row", "a row", "x", True)
OTHER = Row("other", "another row", "x", True)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(seconds=0.1, warmup_s=0.1, rounds=2, backlog=10, folder=tmp_path)


@pytest.fixture(autouse=True)
def sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two brokers, both of them sinks."""
    makers: dict[str, Callable[[Path], Node]] = {
        name: lambda _: SinkNode() for name in ("leveret", "rabbitmq")
    }
    monkeypatch.setattr(contenders, "MAKERS", makers)
    monkeypatch.setattr(contenders, "unavailable", lambda name: None)
    monkeypatch.setattr(contenders, "version", lambda name: "1")


def test_brokers_take_turns(settings: Settings) -> None:
    said: list[str] = []
    scenario = Scenario((ROW,), lambda node, settings: {"row": Reading(1.0)})
    run([scenario], ["leveret", "rabbitmq"], settings, lambda row: True, said.append)
    assert said[2:] == [
        "row: leveret, round 1",
        "row: rabbitmq, round 1",
        "row: leveret, round 2",
        "row: rabbitmq, round 2",
    ]


@pytest.mark.parametrize("failure", [LoadError, httpx.ReadTimeout])
def test_a_failure_is_noted_and_the_rest_goes_on(settings: Settings, failure: type[Exception]) -> None:
    def fail(node: Node, settings: Settings) -> dict[str, Reading]:
        raise failure("it lost one")

    broken = Scenario((ROW,), fail)
    good = Scenario((OTHER,), lambda node, settings: {"other": Reading(1.0)})
    record = run([broken, good], ["leveret"], settings, lambda row: True, lambda text: None)
    assert record["errors"] == {"row on leveret": "it lost one"}
    assert [row["name"] for row in record["rows"]] == ["other"]


def test_only_wanted_rows_are_kept_and_long_scenarios_run_once(settings: Settings) -> None:
    runs: list[Node] = []

    def both(node: Node, settings: Settings) -> dict[str, Reading]:
        runs.append(node)
        return {"row": Reading(1.0), "other": Reading(2.0)}

    scenario = Scenario((ROW, OTHER), both, once=True)
    record = run([scenario], ["leveret"], settings, lambda row: row is OTHER, lambda text: None)
    assert [row["name"] for row in record["rows"]] == ["other"]
    assert len(runs) == 1


def test_a_target_may_be_a_share_of_a_row_of_the_same_scenario(settings: Settings) -> None:
    part = Row("part", "a part", "x", True, Target("share", 3.0, "row"))
    scenario = Scenario((ROW, part), lambda node, settings: {"row": Reading(1.0), "part": Reading(2.0)})
    record = run([scenario], ["leveret"], settings, lambda row: True, lambda text: None)
    assert [row["met"] for row in record["rows"]] == [None, False]


def test_a_broker_that_is_not_there_is_left_out_with_the_reason(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {"leveret": None, "rabbitmq": "no RabbitMQ: install it"}
    monkeypatch.setattr(contenders, "unavailable", missing.get)
    scenario = Scenario((ROW,), lambda node, settings: {"row": Reading(1.0)})
    record = runner.run([scenario], ["leveret", "rabbitmq"], settings, lambda row: True, lambda text: None)
    assert record["errors"] == {"rabbitmq": "no RabbitMQ: install it"}
    assert "rabbitmq" not in record["rows"][0]


def test_a_row_can_have_a_target_that_is_a_share_of_one_before_it(settings: Settings) -> None:
    half = Row("half", "half of it", "x", True, Target("share", 0.5, of_row="row"))
    whole = Scenario((ROW,), lambda node, settings: {"row": Reading(10.0)})
    part = Scenario((half,), lambda node, settings: {"half": Reading(4.0)})
    record = run([whole, part], ["leveret"], settings, lambda row: True, lambda text: None)
    assert [row["met"] for row in record["rows"]] == [None, False]


def test_another_checkout_runs_first_in_each_round_with_its_own_sources(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "src" / "leveret").mkdir(parents=True)
    before = Checkout(tmp_path)
    sources: list[str | None] = []

    def look(node: Node, settings: Settings) -> dict[str, Reading]:
        sources.append(os.environ.get("PYTHONPATH"))
        return {"row": Reading(1.0)}

    given = os.environ.get("PYTHONPATH")
    scenario = Scenario((ROW,), look)
    record = run([scenario], ["leveret"], settings, lambda row: True, lambda text: None, before)
    assert sources == [str(before.sources), given] * 2
    assert len(record["rows"][0]["before"]["rounds"]) == 2
    assert os.environ.get("PYTHONPATH") == given
