"""Observes a leader's accounts of its mirrors: how far each has a log on its disk, in the view of the leader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from unittest import mock

from leveret.runtime.mirroring.source_link import SourceLink
from leveret.runtime.mirroring.sources import MirrorSources
from leveret.testing.simulation.machine.process import current_process
from leveret.wire.link import Copy


class AccountWatch(Protocol):
    """The receiver of the observations."""

    def accounted(self, leader: str, node: str, log: str, end: int) -> None:
        """Take the offset up to which a leader counts on a mirror from now on; full names of nodes."""


@contextmanager
def watched_accounts(watch: AccountWatch) -> Iterator[None]:
    """Report each change of an account to `watch`, until the end of the block."""
    acked: Any = MirrorSources.acked
    take: Any = SourceLink._take
    reported: dict[tuple[int, str, str], int] = {}

    def tell(sources: MirrorSources, node: str, log: str) -> None:
        led, process = sources.led.get(log), current_process()
        if led is None or process is None or node not in led.streams:
            return
        cut, key = sources.replicas(log).has(node), (id(sources), node, log)
        if cut > reported.get(key, 0) and cut >= led._cuts[0][0]:
            reported[key] = cut
            watch.accounted(process.name, node, log, led.end_at(cut))

    def acked_seen(sources: MirrorSources, node: str) -> None:
        acked(sources, node)
        for log, led in sources.led.items():
            if node in led.streams:
                tell(sources, node, log)

    def take_seen(link: SourceLink, copy: Copy) -> None:
        take(link, copy)
        leader: Any = link.leader
        reported.pop((id(leader), link.node, copy.log.path), None)
        tell(leader, link.node, copy.log.path)

    with (
        mock.patch.object(MirrorSources, "acked", acked_seen),
        mock.patch.object(SourceLink, "_take", take_seen),
    ):
        yield
