"""`python -m leveret.testing.demo [--all] [--share N] [--seed N] [--console]`: the disaster, and its table."""

from __future__ import annotations

import random
import sys
from typing import Final

from leveret.testing.applications.applications import now_ms
from leveret.testing.applications.audit import Audit
from leveret.testing.demo import report
from leveret.testing.demo.arguments import arguments
from leveret.testing.demo.console import DemoConsole
from leveret.testing.demo.flights import flights
from leveret.testing.demo.promotion import promote_and_audit
from leveret.testing.demo.sites import Sites

SHARE: Final = 60_000


def main() -> int:
    """Run the demo; the exit status is 1 when the books do not balance."""
    purpose = "Lose a site, promote its standby, count every message."
    offer = "open the console on both sites, and leave the promotion to you"
    asked = arguments("leveret-demo", purpose, share=SHARE, console=offer)
    report.say(str(asked))
    with Sites() as sites:
        if not asked.console:
            result = _run(sites, asked.count, asked.chance, asked.seed, None)
            report.show(result)
        else:
            with DemoConsole(sites.urls) as console:
                result = _run(sites, asked.count, asked.chance, asked.seed, console)
                report.show(result)
                console.stay_open()
    report.step("done")
    return 0 if result.balances else 1


def _run(sites: Sites, count: int, chance: random.Random, seed: int, console: DemoConsole | None) -> Audit:
    report.step("1/6 start the upstream and, far away, the downstream")
    sites.start()
    if console is not None:
        console.open()
    report.step("2/6 the downstream follows: definitions over AMQP 1.0, messages through Spark")
    sites.connect_downstream()
    report.step("3/6 applications publish and consume at the upstream")
    published = list(flights(count))
    sites.start_applications(count, seed)
    # Chance chooses the moment: after half of the flights are confirmed, and no process knows it before.
    doomed_at = int(count * chance.uniform(0.5, 0.95))
    with report.progress("confirmed", count) as bar:
        sites.applications.wait_confirmed(doomed_at, bar)
    killed_ms = now_ms()
    sites.kill_upstream()
    report.step(
        f"4/6 kill -9 of the upstream, with {sites.applications.confirmed():,} of {count:,} flights confirmed"
    )
    return promote_and_audit(sites, published, killed_ms, console, ("5/6", "6/6"))


if __name__ == "__main__":
    sys.exit(main())
