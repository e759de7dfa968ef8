"""The end of a demo that loses a site: its standby is promoted and drained, and every message is accounted for."""

from __future__ import annotations

from collections.abc import Sequence

from leveret.testing.applications.audit import Account, Audit, audit
from leveret.testing.demo import report
from leveret.testing.demo.console import DemoConsole
from leveret.testing.demo.flights import QUEUES, Flight
from leveret.testing.demo.sites import Sites


def promote_and_audit(
    sites: Sites,
    published: Sequence[Flight],
    killed_ms: int,
    console: DemoConsole | None,
    steps: tuple[str, str],
) -> Audit:
    """Promote the downstream, or wait until somebody has done so from the console; drain it and count.

    Args:
        sites: of which the upstream is gone.
        published: all flights, also those without a confirm.
        killed_ms: the time of the upstream's end.
        console: where a person promotes; None for a promotion by command.
        steps: the numbers of the two steps, as they are shown.
    """
    report.step(f"{steps[0]} promote the downstream: Spark works out what was unsettled and brings it back")
    if console is not None:
        console.wait_promoted(lambda: sites.pair.status()["operating_mode"] == "upstream")
    with report.progress("recovered", None) as bar:
        summary = sites.promoted() if console is not None and console.has_promoted else sites.promote(bar)
    report.say(summary.partition("\n")[2].rstrip())
    covered = sites.pair.covered(QUEUES)
    report.step(f"{steps[1]} fresh consumers drain the downstream")
    result = audit(
        published, Account.read(*sites.applications.books), sites.drain(), covered, sites.pair.transferred()
    )
    result.lag_ms = max(0, killed_ms - min(covered.values()))
    return result
