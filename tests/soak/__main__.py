"""A soak: applications that come and go for an hour or more, and the resources that processes gain by it.

    python -m tests.soak --minutes 60                 a cluster of three, and a standby that follows it
    python -m tests.soak --minutes 10 --seed 7

Every 15 s memory, descriptors, threads and files of each node and its processes are looked at (tests/soak/samples.py).
A table shows their trends after the first third. The exit status is 1 if the number of descriptors or threads grows,
or if an application failed more often than it should. Leaks of memory are for a reader to judge, because heaps have no
size of their own. All samples are in build/soak.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites.cluster_standby import ClusterStandby
from tests.soak.applications import VHOST, Count, Place, start_all
from tests.soak.samples import Sample, Trend, sample, trends

_INTERVAL_S: Final = 15.0
_FAILED_SHARE_MAX: Final = 0.02
_GROWTH_MAX: Final = {"descriptors": 10.0, "threads": 5.0}
"""The most that each may grow in an hour: a node has some that come and go."""
_REPORT: Final = Path("build/soak.json")


def main() -> int:
    """Run the soak, and show what grew."""
    parser = argparse.ArgumentParser(
        "tests.soak", description="Look for what grows under applications that come and go."
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    asked = parser.parse_args()
    print(f"soak: {asked.minutes:g} minutes, seed {asked.seed}", flush=True)
    count = Count()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, ClusterStandby(VHOST, Path(folder)) as pair:
        pair.start()
        pair.replicate("all", "^")
        pair.follow()
        nodes = {node.node: node for node in pair.site.members} | {"standby": pair.downstream}
        found = _soak(nodes, asked.minutes * 60, asked.seed, count)
    _REPORT.parent.mkdir(exist_ok=True)
    _REPORT.write_text(json.dumps({"seed": asked.seed, "samples": found, "failed": count.reasons}, indent=1))
    grown = {name: trends(samples) for name, samples in found.items()}
    print(_table(grown, count))
    return 0 if _holds(grown, count) else 1


def _soak(
    nodes: Mapping[str, LeveretProcess], span_s: float, seed: int, count: Count
) -> dict[str, list[Sample]]:
    stop = threading.Event()
    clients = [node for name, node in nodes.items() if name != "standby"]
    places = [
        Place(node.amqp_port, node.management_port, random.Random(f"{seed} {number}"))
        for number, node in enumerate(clients)
    ]
    threads = start_all(places, stop, count)
    found: dict[str, list[Sample]] = {name: [] for name in nodes}
    began_s = time.monotonic()
    while (at_s := time.monotonic() - began_s) < span_s:
        for name, node in nodes.items():
            found[name].append(sample(node.pid, node.data_dir, at_s))
        if sys.stderr.isatty():
            print(f"\r{at_s / 60:5.1f} minutes, {count.done.total():,} turns", end="", file=sys.stderr)
        time.sleep(_INTERVAL_S)
    stop.set()
    for thread in threads:
        thread.join(60)
    return found


def _table(grown: Mapping[str, Mapping[str, Trend]], count: Count) -> str:
    lines = [f"{'process':<16}{'resource':<14}{'first':>10}{'last':>10}{'an hour':>10}"]
    for name, resources in grown.items():
        lines += [
            f"{name:<16}{resource:<14}{trend.first:>10,.1f}{trend.last:>10,.1f}{trend.hourly:>+10,.1f}"
            for resource, trend in resources.items()
        ]
    lines += [f"{'application':<18}{'turns':>8}{'failed':>8}  last reason"]
    lines += [
        f"{name:<18}{count.done[name]:>8,}{count.failed[name]:>8,}  {count.reasons.get(name, '')[:100]}"
        for name in sorted({*count.done, *count.failed})
    ]
    return "\n".join(lines)


def _holds(grown: Mapping[str, Mapping[str, Trend]], count: Count) -> bool:
    turns: Sequence[tuple[int, int]] = [
        (count.failed[name], count.done[name]) for name in {*count.done, *count.failed}
    ]
    return all(failed <= _FAILED_SHARE_MAX * done for failed, done in turns) and all(
        trends_[resource].hourly <= most
        for trends_ in grown.values()
        for resource, most in _GROWTH_MAX.items()
    )


if __name__ == "__main__":
    sys.exit(main())
