"""`python -m leveret.testing.demo.lost_cluster [--share N] [--seed N] [--console]`: a cluster and its standby."""

from __future__ import annotations

import random
import sys
import time
from typing import Final

from leveret.testing.applications.applications import now_ms
from leveret.testing.applications.audit import Audit
from leveret.testing.demo import report
from leveret.testing.demo.arguments import arguments
from leveret.testing.demo.cluster_sites import ClusterSites
from leveret.testing.demo.console import DemoConsole
from leveret.testing.demo.flights import flights
from leveret.testing.demo.promotion import promote_and_audit
from leveret.testing.sites import cluster_site

SHARE: Final = 80_000
_NODE_LOST_BETWEEN: Final = (0.25, 0.4)
_OWNER_LOST_BETWEEN: Final = (0.4, 0.5)
_SITE_LOST_BETWEEN: Final = (0.75, 0.9)


def main() -> int:
    """Run the demo; the exit status is 1 when the books do not balance, 2 when it cannot be run here."""
    purpose = "Lose a node of each of two clusters, then the whole first one; promote the second, count every message."
    offer = "open the console on both sites, and leave the promotion to you"
    asked = arguments("leveret-demo-sites", purpose, share=SHARE, console=offer)
    if reason := cluster_site.available():
        report.say(f"the demo cannot be run here: {reason}")
        return 2
    report.say(str(asked))
    with ClusterSites() as sites, DemoConsole(sites.urls) as shown:
        result = _run(sites, asked.count, asked.chance, asked.seed, shown if asked.console else None)
        report.show(result)
        if asked.console:
            shown.stay_open()
    report.step("done")
    return 0 if result.balances else 1


def _run(
    sites: ClusterSites, count: int, chance: random.Random, seed: int, console: DemoConsole | None
) -> Audit:
    report.step("1/8 start an etcd and three nodes, and far away as many; queues are mirrored and replicated")
    sites.start()
    sites.spread()
    if console is not None:
        console.open()
    _show_leaders(sites)
    report.step(
        "2/8 the downstream follows: definitions over AMQP 1.0, messages through Spark, from each node its own"
    )
    sites.connect_downstream()
    report.step("3/8 at each node one application publishes and one consumes")
    published = list(flights(count))
    sites.start_applications(count, seed)
    with report.progress("confirmed", count) as bar:
        # Chance chooses the moments, and no process knows them before.
        sites.applications.wait_confirmed(int(count * chance.uniform(*_NODE_LOST_BETWEEN)), bar)
        _lose_node(sites, count)
        sites.applications.wait_confirmed(int(count * chance.uniform(*_OWNER_LOST_BETWEEN)), bar)
        _lose_owner(sites, count)
        sites.applications.wait_confirmed(int(count * chance.uniform(*_SITE_LOST_BETWEEN)), bar)
    killed_ms = now_ms()
    sites.kill_upstream()
    confirmed = sites.applications.confirmed()
    report.step(f"6/8 kill -9 of all of the upstream, with {confirmed:,} of {count:,} flights confirmed")
    return promote_and_audit(sites, published, killed_ms, console, ("7/8", "8/8"))


def _lose_node(sites: ClusterSites, count: int) -> None:
    """Kill a node, and wait until the standby has what its successors collect."""
    lost = sites.lose_node()
    lost_s = time.monotonic()
    confirmed = sites.applications.confirmed()
    report.step(f"4/8 kill -9 of {lost.node}, with {confirmed:,} of {count:,} flights confirmed")
    sites.wait_led_without(lost)
    _show_leaders(sites)
    sites.pair.wait_transferred()
    report.detail(f"the standby had everything again {time.monotonic() - lost_s:.1f} s after that")


def _lose_owner(sites: ClusterSites, count: int) -> None:
    """Kill the node of the standby that transfers, and wait until another one has everything."""
    lost = sites.pair.lose_owner()
    lost_s = time.monotonic()
    confirmed = sites.applications.confirmed()
    report.step(
        f"5/8 far away, kill -9 of {lost.node}, which transfers, with {confirmed:,} of {count:,} flights confirmed"
    )
    sites.pair.wait_taken_over(lost)
    report.detail(f"{sites.pair.row()['owner']} had everything {time.monotonic() - lost_s:.1f} s after that")


def _show_leaders(sites: ClusterSites) -> None:
    led: dict[str, list[str]] = {}
    for queue, leader in sorted(sites.leaders().items()):
        led.setdefault(leader, []).append(queue)
    for leader, queues in sorted(led.items()):
        report.detail(f"{leader} leads {', '.join(queues)}, mirrored at the others")


if __name__ == "__main__":
    sys.exit(main())
