"""`python -m leveret.testing.demo.cluster [--all] [--share N] [--seed N]`: what a cluster is for, and the books of it."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from leveret.testing import cluster_site
from leveret.testing.applications import Message, Taken, now_ms
from leveret.testing.audit import FOREVER, Account, Audit, audit
from leveret.testing.books import Books, read_book
from leveret.testing.demo import report
from leveret.testing.demo.arguments import arguments
from leveret.testing.demo.flights import QUEUES, flights
from leveret.testing.demo.nodes import Nodes, Pause

SHARE: Final = 30_000
_KILLED_BETWEEN: Final = (0.15, 0.35)
_BACK_AT: Final = 0.55
_STOPPED_AT: Final = 0.75
_COLUMNS: Final = ("confirmed", "acked", "redelivered", "left", "lost", "resurrected", "duplicated")
_MB: Final = 1_000_000


class Counts(NamedTuple):
    """What the books of all applications say together.

    Attributes:
        audit: the judgement.
        redelivered: deliveries of each queue beyond the first of a message.
        unanswered: flights that were published and never confirmed, their node being gone.
        unanswered_there: of these, those that are there nevertheless.
    """

    audit: Audit
    redelivered: Mapping[str, int]
    unanswered: int
    unanswered_there: int


def main() -> int:
    """Run the demo; the exit status is 1 when the books do not balance, 2 when it cannot be run here."""
    asked = arguments("leveret-demo-cluster", "Lose a node of a cluster, count every message.", share=SHARE)
    if reason := cluster_site.available():
        report.say(f"the demo cannot be run here: {reason}")
        return 2
    report.say(str(asked))
    with Nodes() as nodes:
        _run(nodes, asked.count, asked.chance, asked.seed)
        published = list(flights(asked.count))
        result = counted(published, nodes.applications.books, nodes.drain())
    _show(result)
    report.step("done")
    return 0 if result.audit.balances else 1


def _run(nodes: Nodes, count: int, chance: random.Random, seed: int) -> None:
    applications = nodes.applications
    report.step("1/6 start an etcd and three nodes; declare queues that a policy mirrors: ha-mode all")
    nodes.start()
    _tell_leaders(nodes)
    report.step("2/6 at each node one application publishes and one consumes")
    nodes.start_applications(count, seed)
    with report.progress("confirmed", count) as bar:
        # The moment is the dice's, and told to nobody beforehand.
        applications.wait_confirmed(int(count * chance.uniform(*_KILLED_BETWEEN)), bar)
        killed = nodes.leader()
        killed_ms = now_ms()
        killed.kill9()
        report.step(
            f"3/6 kill -9 of {killed.node}, with {applications.confirmed():,} of {count:,} flights confirmed"
        )
        nodes.wait_led_without(killed)
        _tell_leaders(nodes)
        applications.wait_confirmed(int(count * _BACK_AT), bar)
        _tell_pause(nodes.longest_pause(killed_ms, killed))
        report.step(f"4/6 {killed.node} comes back, with what it has")
        back = nodes.bring_back(killed)
        report.say(
            f"       of its mirrors {back.held_bytes / _MB:.1f} MB were there and {back.copied_bytes / _MB:.1f} MB "
            f"were copied; synchronised {back.took_s:.1f} s after its start, beside live traffic"
        )
        applications.wait_confirmed(int(count * _STOPPED_AT), bar)
        stopped = nodes.leader()
        stopped_ms = now_ms()
        report.step(f"5/6 stop {stopped.node} in order: it hands over what it leads")
        stopped.stop()
        nodes.wait_led_without(stopped)
        _tell_leaders(nodes)
        applications.wait_confirmed(applications.confirmed() + count // 20, bar)
        _tell_pause(nodes.longest_pause(stopped_ms, killed, stopped))
        report.step("6/6 publish the rest; fresh consumers drain the queues")
        applications.end(bar)


def _tell_leaders(nodes: Nodes) -> None:
    for queue, placed in sorted(nodes.placed().items()):
        mirrors = ", ".join(placed.mirrors or ["none"])
        report.say(f"       {queue} is led by {placed.leader}, mirrors: {mirrors}")


def _tell_pause(pause: Pause) -> None:
    report.say(f"       longest pause of a publisher at another node: {pause.lasted_ms:,} ms ({pause.node})")


def counted(
    published: Sequence[Message], groups: Iterable[Books], found: Mapping[str, Sequence[Taken]]
) -> Counts:
    """Judge by the books of all applications, and by what was left in the queues at the end."""
    groups = list(groups)
    queues = {message.number: message.queue for message in published}
    account = Account.read(*groups)
    result = audit(published, account, found, dict.fromkeys(QUEUES, FOREVER))
    lines = {line.queue: line for line in result.lines}
    settled, delivered = (
        Counter(number for books in groups for number, _ in read_book(getattr(books, name)))
        for name in ("acked", "delivered")
    )
    for number in settled:
        # Whoever settles a message twice got two of it.
        lines[queues[number]].duplicated += settled[number] - 1
    redelivered: Counter[str] = Counter()
    for number, times in delivered.items():
        redelivered[queues[number]] += times - 1
    there = {taken.number for each in found.values() for taken in each} | delivered.keys()
    unanswered = queues.keys() - account.confirmed.keys()
    return Counts(result, redelivered, len(unanswered), len(unanswered & there))


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


if __name__ == "__main__":
    sys.exit(main())
