"""`python -m leveret.testing.demo.cluster [--all] [--share N] [--seed N] [--console]`: a cluster loses a node."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from typing import Final

from leveret.testing.applications.applications import now_ms
from leveret.testing.demo import report
from leveret.testing.demo.arguments import arguments
from leveret.testing.demo.console import DemoConsole
from leveret.testing.demo.counts import Counts, counted
from leveret.testing.demo.flights import flights
from leveret.testing.demo.nodes import DELAY_S, STREAM, DemoNodes, Pause, Return, StreamCounts
from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_site import SiteNode

SHARE: Final = 30_000
_KILLED_BETWEEN: Final = (0.3, 0.5)
_BACK_AT: Final = 0.65
_STOPPED_AT: Final = 0.8
_COLUMNS: Final = ("confirmed", "acked", "redelivered", "left", "lost", "resurrected", "duplicated")
_MB: Final = 1_000_000


def main() -> int:
    """Run the demo; the exit status is 1 when the books do not balance, 2 when it cannot be run here."""
    purpose = "Lose a node of a cluster, count every message."
    offer = "open the console on the cluster, and leave it open at the end"
    asked = arguments("leveret-demo-cluster", purpose, share=SHARE, console=offer)
    if reason := cluster_site.available():
        report.say(f"the demo cannot be run here: {reason}")
        return 2
    report.say(str(asked))
    with DemoNodes() as nodes, DemoConsole(nodes.urls) as shown:
        _run(nodes, asked.count, asked.chance, asked.seed, shown if asked.console else None)
        published = list(flights(asked.count))
        stream = nodes.count_stream()
        result = counted(published, nodes.applications.books, nodes.drain())
        _show_stream(stream)
        _show(result)
        if asked.console:
            shown.stay_open()
    report.step("done")
    return 0 if result.audit.balances and not (stream.lost or stream.duplicated) else 1


def _run(nodes: DemoNodes, count: int, chance: random.Random, seed: int, console: DemoConsole | None) -> None:
    applications = nodes.applications
    report.step(
        "1/6 start an etcd, three nodes and a delayed follower; declare a stream, and mirrored queues"
    )
    nodes.start()
    if console is not None:
        console.open()
    _show_leaders(nodes)
    report.detail(
        f"the follower has all data of {nodes.followed.node}, and can leave out the changes of the last {DELAY_S} s"
    )
    report.step("2/6 at each node one application publishes and one consumes")
    nodes.start_applications(count, seed)
    with report.progress("confirmed", count) as bar:
        # Chance chooses the moment, and no process knows it before.
        applications.wait_confirmed(int(count * chance.uniform(*_KILLED_BETWEEN)), bar)
        killed = _lose(nodes, count, bar)
        report.step(f"4/6 {killed.node} comes back, with what it has")
        _show_return(nodes.bring_back(killed))
        applications.wait_confirmed(int(count * _STOPPED_AT), bar)
        _hand_over(nodes, killed, count, bar)
        report.step("6/6 publish the rest; fresh consumers drain the queues")
        applications.end(bar)


def _lose(nodes: DemoNodes, count: int, bar: report.Bar) -> SiteNode:
    """Kill the leader of most queues while all applications work; return it."""
    node, at_ms = nodes.leader(), now_ms()
    node.kill9()
    confirmed = nodes.applications.confirmed()
    report.step(f"3/6 kill -9 of {node.node}, with {confirmed:,} of {count:,} flights confirmed")
    nodes.wait_led_without(node)
    _show_leaders(nodes)
    nodes.applications.wait_confirmed(int(count * _BACK_AT), bar)
    _show_pause(nodes.longest_pause(at_ms, node))
    _show_lag(nodes)
    return node


def _hand_over(nodes: DemoNodes, killed: SiteNode, count: int, bar: report.Bar) -> None:
    """Stop the present leader in order. The applications of the killed node work at any node by now."""
    node, at_ms = nodes.leader(), now_ms()
    report.step(f"5/6 stop {node.node} in order: it hands over what it leads")
    node.stop()
    nodes.wait_led_without(node)
    _show_leaders(nodes)
    nodes.applications.wait_confirmed(nodes.applications.confirmed() + count // 20, bar)
    _show_pause(nodes.longest_pause(at_ms, killed, node))
    _show_lag(nodes)


def _show_leaders(nodes: DemoNodes) -> None:
    led: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for queue, placed in nodes.placed().items():
        led[placed.leader, tuple(sorted(placed.mirrors or ["nowhere"]))].append(queue)
    for (leader, mirrors), queues in sorted(led.items()):
        report.detail(f"{leader} leads {', '.join(sorted(queues))}, mirrored at {', '.join(mirrors)}")


def _show_pause(pause: Pause | None) -> None:
    if pause is None:
        report.detail("no pause of a publisher at another node: all of them had published everything")
    else:
        report.detail(f"longest pause of a publisher at another node: {pause.lasted_ms:,} ms")


def _show_lag(nodes: DemoNodes) -> None:
    lag = nodes.lag()
    shown = (
        f"the follower lacks {lag.missing_bytes / _MB:.1f} MB, and could still leave out {lag.records:,} records, "
        f"{lag.bytes / _MB:.1f} MB, of the last {lag.age_s:.1f} s"
    )
    report.detail(shown if lag.is_connected else f"{shown}; {nodes.followed.node} is away")


def _show_return(back: Return) -> None:
    report.detail(
        f"of its mirrors {back.backlog_bytes / _MB:.1f} MB were there and {back.copied_bytes / _MB:.1f} MB were copied "
        f"beside live traffic; synchronised {back.took_s:.1f} s after its start"
    )
    if back.quarantine:
        report.detail(f"{back.quarantine:,} records that it alone had, confirmed to nobody, are set aside")


def _show(result: Counts) -> None:
    lines = result.audit.lines
    redelivered = [result.redelivered[line.queue] for line in lines]
    rows = [
        (
            line.queue,
            [line.confirmed, line.acked, again, line.recovered, line.lost, line.resurrected, line.duplicated],
        )
        for line, again in zip([*lines, result.audit.total], [*redelivered, sum(redelivered)], strict=True)
    ]
    report.table(_COLUMNS, rows)
    if result.unanswered:
        report.say(
            f"{result.unanswered:,} flights had no confirm yet when the node of their publisher went: "
            f"{result.unanswered_there:,} of them are there"
        )
    report.verdict(result.audit)


def _show_stream(stream: StreamCounts) -> None:
    report.say(
        f"stream {STREAM}: {stream.there:,} flights for {stream.confirmed:,} confirmed ones, {stream.lost} lost, "
        f"{stream.duplicated} duplicated"
    )


if __name__ == "__main__":
    sys.exit(main())
