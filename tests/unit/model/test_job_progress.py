from __future__ import annotations

from leveret.model.job_progress import JobProgress


def test_a_recovery_is_counted_in_messages_and_tells_the_time_left() -> None:
    progress = JobProgress("waiting")
    progress.take({"event": "started"}, 0)
    assert (progress.step, progress.seconds_left(0)) == ("looking for unconsumed messages", None)
    progress.take({"event": "planned", "queues": {"a": 60, "b": 40}}, 1_000)
    progress.take({"event": "planned", "queues": {"c": 100}}, 1_500)
    progress.take({"event": "published", "messages": 50}, 6_000)
    assert (progress.step, progress.done, progress.total) == ("recovering", 50, 200)
    assert progress.seconds_left(6_000) == 15.0


def test_a_comparison_begins_anew() -> None:
    progress = JobProgress("waiting")
    progress.take({"event": "planned", "queues": {"a": 10}}, 0)
    progress.take({"event": "published", "messages": 10}, 5_000)
    progress.take({"event": "comparing"}, 6_000)
    assert (progress.done, progress.total, progress.seconds_left(9_000)) == (0, 10, None)
    progress.take({"event": "compared", "messages": 5}, 8_000)
    assert progress.seconds_left(8_000) == 2.0


def test_a_broker_that_blocks_its_publishers_is_named_with_its_reason_until_it_takes_messages_again() -> None:
    progress = JobProgress("waiting")
    progress.take({"event": "planned", "queues": {"a": 10}}, 0)
    progress.take({"event": "blocked", "target": "h:5672", "reason": "low on memory"}, 1_000)
    assert progress.step == "waiting: h:5672 blocks its publishers until its alarm ends: low on memory"
    progress.take({"event": "unblocked", "target": "h:5672", "reason": ""}, 2_000)
    assert progress.step == "recovering"


def test_garbage_counts_nothing() -> None:
    progress = JobProgress("waiting")
    for event in ({}, {"event": "planned", "queues": 5}, {"event": "published", "messages": "many"}):
        progress.take(event, 0)
    assert (progress.done, progress.total) == (0, 0)


def test_what_is_measured_tells_the_time_left_from_its_first_measure_on() -> None:
    progress = JobProgress("waiting")
    progress.measured("reading", 0, 100, 1_000)
    progress.measured("reading", 25, 100, 6_000)
    assert (progress.step, progress.done, progress.total, progress.seconds_left(6_000)) == (
        "reading",
        25,
        100,
        15.0,
    )
    progress.measured("reading", 130, 100, 7_000)
    assert (progress.done, progress.seconds_left(7_000)) == (100, 0.0)
