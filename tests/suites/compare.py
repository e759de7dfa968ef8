"""What a suite says of two brokers: what passes on RabbitMQ has to pass on Leveret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.suites.known import Known
from tests.suites.run import Ended, Results

NOT_RUN = Ended("skipped", "did not come to its end within the suite's time")


@dataclass(frozen=True, slots=True)
class Difference:
    """A test that passes on RabbitMQ and not on Leveret; `reason` if that is known."""

    test: str
    outcome: str
    text: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One suite on both brokers.

    Attributes:
        suite: its name.
        tests: how many tests ended on either broker.
        passed_on_rabbitmq: how many of them passed there.
        passed_on_leveret: how many of them passed here.
        unsteady: what passes on both, here not at the first try.
        differences: what passes there and not here, in RabbitMQ's order.
        outdated: known differences that are none any more, by node id.
    """

    suite: str
    tests: int
    passed_on_rabbitmq: int
    passed_on_leveret: int
    unsteady: tuple[str, ...]
    differences: tuple[Difference, ...]
    outdated: tuple[str, ...]

    @property
    def unlisted(self) -> tuple[Difference, ...]:
        """The differences without a reason."""
        return tuple(one for one in self.differences if not one.reason)

    @property
    def met(self) -> bool:
        """Whether the list of known differences says it all, and nothing too much."""
        return not self.unlisted and not self.outdated


def compare(suite: str, on_rabbitmq: Results, on_leveret: Results, known: Sequence[Known]) -> Comparison:
    """Compare how the tests of a suite ended on the two brokers."""
    listed = [one for one in known if one.suite == suite]
    passed = [test for test, ended in on_rabbitmq.items() if ended.outcome == "passed"]
    differing = differing_tests(on_rabbitmq, on_leveret)
    outdated = [
        one.test
        for one in listed
        if any(one.covers(suite, test) for test in passed)
        and not any(one.covers(suite, test) for test in differing)
    ]
    return Comparison(
        suite=suite,
        tests=len(on_rabbitmq.keys() | on_leveret.keys()),
        passed_on_rabbitmq=len(passed),
        passed_on_leveret=sum(ended.outcome == "passed" for ended in on_leveret.values()),
        unsteady=tuple(
            test
            for test in passed
            if test in on_leveret and on_leveret[test].tries > 1 and test not in differing
        ),
        differences=tuple(_difference(suite, test, on_leveret, listed) for test in differing),
        outdated=tuple(outdated),
    )


def differing_tests(on_rabbitmq: Results, on_leveret: Results) -> list[str]:
    """Return what passes on RabbitMQ and not on Leveret, in RabbitMQ's order."""
    passed = (test for test, ended in on_rabbitmq.items() if ended.outcome == "passed")
    return [test for test in passed if on_leveret.get(test, NOT_RUN).outcome != "passed"]


def _difference(suite: str, test: str, on_leveret: Results, listed: Sequence[Known]) -> Difference:
    ended = on_leveret.get(test, NOT_RUN)
    reason = next((one.reason for one in listed if one.covers(suite, test)), "")
    return Difference(test, ended.outcome, ended.text, reason)
