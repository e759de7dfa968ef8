"""The record of the last runs: how every test ended on each broker, in build/suites/results.json.

A suite on a broker replaces what stood there for the two, so that one broker alone can be run
again and be compared with the other's last run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.suites.run import Ended, Results


@dataclass(slots=True)
class SuiteRun:
    """One suite on one broker: when it ended (UTC), on which version, and how its tests ended."""

    ended_at: str
    version: str
    results: Results


@dataclass(slots=True)
class Record:
    """The last run of each suite on each broker."""

    runs: dict[str, dict[str, SuiteRun]] = field(default_factory=dict)

    def put(self, suite: str, broker: str, run: SuiteRun) -> None:
        """Replace the last run of a suite on a broker."""
        self.runs.setdefault(suite, {})[broker] = run

    def merge_into(self, target: Path, suite: str, brokers: Iterable[str]) -> None:
        """Put a suite's runs on these brokers into what is on disk, beside what others put there meanwhile."""
        kept = read_record(target)
        for broker, run in self.runs.get(suite, {}).items():
            if broker in brokers:
                kept.put(suite, broker, run)
        kept.write(target)

    def write(self, target: Path) -> None:
        """Write the record down whole, or leave the old one."""
        document = {
            suite: {broker: asdict(run) for broker, run in by_broker.items()}
            for suite, by_broker in self.runs.items()
        }
        new = target.with_suffix(".new")
        new.write_text(json.dumps(document, indent=1) + "\n")
        new.replace(target)


def read_record(source: Path) -> Record:
    """Read what `Record.write` wrote; without a file nothing has been run."""
    if not source.exists():
        return Record()
    document = json.loads(source.read_text())
    return Record(
        {suite: {broker: _run(run) for broker, run in runs.items()} for suite, runs in document.items()}
    )


def _run(row: dict[str, object]) -> SuiteRun:
    results = row["results"]
    assert isinstance(results, dict)
    ended = {test: Ended(**one) for test, one in results.items()}
    return SuiteRun(str(row["ended_at"]), str(row["version"]), ended)
