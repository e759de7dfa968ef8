"""Tests that pass on RabbitMQ and are known not to pass on Leveret, each with its reason.

A reason here is a line of docs/deviations.md too. An entry whose test passes on both brokers is out
of date, and a run says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


@dataclass(frozen=True, slots=True)
class Known:
    """A difference that is meant.

    Attributes:
        suite: name of the suite.
        test: node id, in which `*` stands for anything.
        reason: why Leveret differs.
        deviation: first cell of the line of docs/deviations.md that states it.
    """

    suite: str
    test: str
    reason: str
    deviation: str

    def covers(self, suite: str, test: str) -> bool:
        """Tell whether this is about a test; brackets in a node id stand for themselves."""
        return suite == self.suite and fnmatchcase(test, self.test.replace("[", "[[]"))


KNOWN: Final[tuple[Known, ...]] = ()
