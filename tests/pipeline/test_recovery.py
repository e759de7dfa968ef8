"""The recovery: a real Spark, a real stream listener, and a process of its own where it is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from leveret.model.errors import LeveretError
from leveret.testing.network.ports import wait_until
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.pipeline.conftest import OF_THEIR_OWN, PATIENCE_S

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
Job = Callable[..., dict[str, Any]]
Start = Callable[[str, dict[str, Any]], Any]
Recover = Callable[[dict[str, Any]], list[dict[str, Any]]]


def busy_upstream(turns: int = 120, vhosts: tuple[str, ...] = ("/",)) -> StandbyUpstream:
    upstream = StandbyUpstream(vhosts)
    for turn in range(turns):
        for vhost in vhosts:
            queue = f"q{turn % 5}"
            messages = [stored_message(b"%d.%d" % (turn, i) + b"x" * 300, b"ex", b"k") for i in range(100)]
            upstream.publish(vhost, queue, messages)
            upstream.settle(vhost, queue, [((turn // 5) * 101 + 10, 50)])
    return upstream


def assert_recovered_once_in_order(
    upstream: StandbyUpstream, node: StandbyUpstream, vhost: str = "/"
) -> None:
    for queue in (f"q{i}" for i in range(5)):
        assert node.recovered(vhost, queue) == upstream.unsettled(vhost, queue)


def finished(child: Any) -> list[dict[str, Any]]:
    assert child.wait() == 0, child.events[-1]
    summary: list[dict[str, Any]] = child.events[-1]["summary"]
    return summary


@pytest.mark.story
@OF_THEIR_OWN
def test_killed_at_every_stage_and_run_again_nothing_is_lost_doubled_or_out_of_order(
    start_pipeline: Start, recover_job: Job, tmp_path: Path
) -> None:
    upstream, node = busy_upstream(), StandbyUpstream()
    transfer(upstream, tmp_path / "standby")
    with node.serving() as port:
        for stage in ("started", "planned"):
            child = start_pipeline("recover", recover_job(port))
            child.wait_for(lambda event, stage=stage: event["event"] == stage)
            child.kill9()
        child = start_pipeline("recover", recover_job(port))
        child.wait_for(lambda event: event["event"] == "started")
        # Not in a loop without a pause: the node is a thread of this process, and would get half of its time.
        wait_until(
            lambda: any(queue.stored for queue in list(node.host.queues.values())),
            "a recovered message",
            PATIENCE_S,
            interval_s=0.005,
        )
        child.kill9()
        (row,) = finished(start_pipeline("recover", recover_job(port)))
        assert_recovered_once_in_order(upstream, node)
        total = sum(len(upstream.unsettled("/", f"q{i}")) for i in range(5))
        assert (row["virtual_host"], row["message_count"]) == ("/", total)
        assert row["queues"] == {f"q{i}": len(upstream.unsettled("/", f"q{i}")) for i in range(5)}
        assert 1_700_000_000_000 <= row["first_timestamp"] <= row["last_timestamp"]
        child = start_pipeline("recover", recover_job(port))
        (row,) = finished(child)
        assert (row["message_count"], row["first_timestamp"]) == (0, None), "nothing again"
        assert "started" not in {event["event"] for event in child.events}, "and without Spark"
        assert_recovered_once_in_order(upstream, node)


@pytest.mark.torture  # Three JVMs take half a minute of two cores.
@pytest.mark.timeout(1200)
def test_on_a_cluster_the_same_job_does_the_same(
    start_pipeline: Start, recover_job: Job, tmp_path: Path
) -> None:
    upstream, node = busy_upstream(20), StandbyUpstream()
    transfer(upstream, tmp_path / "standby")
    with node.serving() as port:
        spark = {"master": "local-cluster[2,1,1024]", "conf": {"spark.executor.memory": "512m"}}
        (row,) = finished(start_pipeline("recover", recover_job(port, spark=spark)))
        assert row["message_count"] == sum(len(upstream.unsettled("/", f"q{i}")) for i in range(5))
    assert_recovered_once_in_order(upstream, node)


def test_vhosts_left_out_are_recovered_by_a_later_promotion(
    recover: Recover, recover_job: Job, tmp_path: Path
) -> None:
    vhosts = ("/", "other")
    upstream, node = busy_upstream(10, vhosts), StandbyUpstream(vhosts)
    transfer(upstream, tmp_path / "standby")
    with node.serving() as port:
        events = recover(recover_job(port, exclude=["other"], queues=[f"q{i}" for i in range(4)]))
        [left] = [event["vhosts"] for event in events if event["event"] == "left_out"]
        counts = [(row["virtual_host"], row["queues"], row["messages"]) for row in left]
        others = sum(len(upstream.unsettled("other", f"q{i}")) for i in range(5))
        assert counts == [("/", 1, len(upstream.unsettled("/", "q4"))), ("other", 5, others)]
        assert [row["virtual_host"] for row in events[-1]["summary"]] == ["/"]
        assert not any(vhost == "other" for vhost, _ in node.host.queues)
        later = recover(recover_job(port))
        assert [row["message_count"] for row in later[-1]["summary"]] == [row["messages"] for row in left]
        assert not any(event["event"] == "left_out" for event in later)
    assert_recovered_once_in_order(upstream, node)
    assert_recovered_once_in_order(upstream, node, "other")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"credentials": {"username": "guest", "password": "wrong"}}, "authentication failure"),
        ({"credentials": {"username": "standby", "password": "secret"}}, "access refused"),
        ({"endpoint": "127.0.0.1:1"}, "127.0.0.1:1"),
    ],
)
def test_what_stands_in_the_way_is_said_and_can_be_mended(
    recover: Recover, recover_job: Job, tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    upstream, node = busy_upstream(5), StandbyUpstream()
    transfer(upstream, tmp_path / "standby")
    with node.serving() as port:
        with pytest.raises((LeveretError, PySparkException), match=text):
            recover(recover_job(port) | changes)
        recover(recover_job(port))
    assert_recovered_once_in_order(upstream, node)


@OF_THEIR_OWN
def test_a_standby_without_data_recovers_nothing_without_spark(
    start_pipeline: Start, recover_job: Job
) -> None:
    assert finished(start_pipeline("recover", recover_job(1))) == []


@OF_THEIR_OWN
@pytest.mark.parametrize("line", [{}, {"data_dir": 7}])
def test_a_malformed_job_is_refused(start_pipeline: Start, line: dict[str, Any]) -> None:
    child = start_pipeline("recover", line)
    assert child.wait() == 1
    assert "malformed" in child.events[-1]["error"]
