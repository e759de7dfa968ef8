from __future__ import annotations

from leveret.console.http.throttle import FAILURES_MAX, WITHIN_S, LoginThrottle


def test_who_guesses_waits_and_others_do_not() -> None:
    throttle = LoginThrottle()
    for at_s in range(FAILURES_MAX):
        assert throttle.wait_s("a", at_s) == 0
        throttle.began("a", at_s)
    assert throttle.wait_s("a", FAILURES_MAX) == WITHIN_S - FAILURES_MAX
    assert throttle.wait_s("b", FAILURES_MAX) == 0
    assert throttle.wait_s("a", WITHIN_S) == 0


def test_a_log_in_that_succeeds_forgets_failures() -> None:
    throttle = LoginThrottle()
    for _ in range(FAILURES_MAX):
        throttle.began("a", 0)
    throttle.succeeded("a")
    assert throttle.wait_s("a", 1) == 0


def test_an_attempt_that_was_no_failure_is_taken_back() -> None:
    throttle = LoginThrottle()
    throttle.forgive("a")
    for _ in range(FAILURES_MAX):
        throttle.began("a", 0)
    throttle.forgive("a")
    assert throttle.wait_s("a", 1) == 0
