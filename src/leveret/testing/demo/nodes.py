"""The cluster of the demo: an etcd, three nodes, a delayed follower of the second one, and applications at each node.

All are real processes on loopback.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from leveret.testing.applications.applications import ReceivedMessage, drain_all
from leveret.testing.applications.books import read_book
from leveret.testing.demo.flights import EXCHANGE, QUEUES, declare
from leveret.testing.demo.processes import Applications
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from leveret.testing.sites.follower_site import FollowerSiteNode
from leveret.testing.sites.mirror_cluster import QueuePlace

VHOST: Final = "/"
STREAM: Final = "flights.all"
"""A stream that gets every flight."""
DELAY_S: Final = 10
"""The delay of the follower."""
_QUIET_S: Final = 2.0
_PREFETCH: Final = 500
_DIVERGED: Final = re.compile(r"mirror_diverged log=\S+ leader=\S+ offset=(\d+) end=(\d+)")
_LACKS: Final = re.compile(r"mirror_lacks log=\S+ node=(\S+) bytes=(\d+) of_bytes=(\d+)")


@dataclass(frozen=True, slots=True)
class Pause:
    """The longest time of a publisher without a confirm, and the publisher's node."""

    node: str
    lasted_ms: int


@dataclass(frozen=True, slots=True)
class Return:
    """The return of a node.

    Attributes:
        backlog_bytes: octets that the node had in common with the leader of each queue.
        copied_bytes: octets that the node lacked and received.
        quarantine: messages and settlements that only this node had, and that were never confirmed.
        took_s: from its start until it had everything.
    """

    backlog_bytes: int
    copied_bytes: int
    quarantine: int
    took_s: float


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """The flights in the stream, compared with the confirmed ones."""

    confirmed: int
    there: int
    lost: int
    duplicated: int


@dataclass(frozen=True, slots=True)
class FollowerLag:
    """What the delayed follower could still leave out, and what it does not have yet.

    Attributes:
        records, bytes, age_s: of the changes that it does not apply yet, because they are younger than its delay.
        missing_bytes: octets of its leader that are not on its disk.
        is_connected: whether its leader runs.
    """

    records: int
    bytes: int
    age_s: float
    missing_bytes: int
    is_connected: bool


class DemoNodes:
    """Three nodes, their follower, and the applications with their books.

    Attributes:
        site: the cluster.
        followed: the node that the follower follows.
        applications: the publishers and consumers.
    """

    def __init__(self) -> None:
        """Prepare; nothing runs yet."""
        self._folder = tempfile.TemporaryDirectory(prefix="leveret-demo-")
        folder = Path(self._folder.name)
        self.site = ClusterSite(folder, followed=True)
        self.followed = self.site.members[1]
        self._follower = FollowerSiteNode("beyond", folder, {"replication.apply_delay": f"{DELAY_S}s"})
        self.applications = Applications(folder / "books", VHOST)
        self._confirmed: list[tuple[SiteNode, Path]] = []

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of the site's HTTP API: one for each of its nodes."""
        return {"cluster": self.site.urls}

    def __enter__(self) -> Self:
        """Start nothing yet: `start` starts."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process and remove every file; an error comes with the nodes' logs."""
        if isinstance(value, Exception):
            value.add_note(self.site.evidence())
        self.applications.close()
        self._follower.close()
        self.site.close()
        self._folder.cleanup()

    def start(self) -> None:
        """Start etcd, the nodes and the follower; declare everything at the first node, which therefore leads it."""
        self.site.form()
        first, *others = self.site.members
        self.site.set_policy("mirrored", "^airport", {"ha-mode": "all"})
        with self.site.channel(first) as channel:
            declare(channel)
            channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
            channel.queue_bind(STREAM, EXCHANGE, "#")
        for queue in (*QUEUES, STREAM):
            self.site.wait_placed(queue, first, mirrors=others, synchronised=others)
        self._follower.link.start()
        self._follower.follow(self.followed)
        self.site.wait(lambda: self.lag().is_connected, "the follower to follow")

    def lag(self) -> FollowerLag:
        """Return the lag of the follower, as its status shows it."""
        leader = self._follower.status()["leader"]
        return FollowerLag(
            records=int(leader["lag_records"] or 0),
            bytes=int(leader["lag_bytes"] or 0),
            age_s=float(leader["lag_s"] or 0.0),
            missing_bytes=max(0, int(leader["position"] or 0) - int(leader["acked_position"] or 0)),
            is_connected=leader["state"] == "delayed",
        )

    # -- the applications ---------------------------------------------------------------------

    def start_applications(self, count: int, seed: int) -> None:
        """See Applications.start_at_each."""
        members = self.site.members
        books = self.applications.start_at_each([node.amqp_port for node in members], count, seed)
        self._confirmed = [(node, each.confirmed) for node, each in zip(members, books, strict=True)]

    def longest_pause(self, since_ms: int, *gone: SiteNode) -> Pause | None:
        """Return the longest pause since that time of publishers at other nodes than these; None if all had ended."""
        pauses: list[Pause] = []
        for node, book in self._confirmed:
            if node in gone:
                continue
            times = [at_ms for _, at_ms in read_book(book)]
            pauses += [
                Pause(node.node, later - earlier) for earlier, later in pairwise(times) if later >= since_ms
            ]
        return max(pauses, key=lambda pause: pause.lasted_ms, default=None)

    def drain(self) -> dict[str, list[ReceivedMessage]]:
        """Empty all queues at a running node together, after messages of ended consumers have come back."""
        self.site.wait(self._holds_nothing, "what the consumers held to come back")
        return drain_all(self.site.running[0].amqp_port, VHOST, QUEUES)

    def count_stream(self) -> StreamCounts:
        """Read the stream from its first message, at a running node."""
        found: list[int] = []
        with self.site.channel(self.site.running[0], confirms=False) as channel:
            channel.basic_qos(prefetch_count=_PREFETCH)
            arguments = {"x-stream-offset": "first"}
            for method, properties, _ in channel.consume(
                STREAM, arguments=arguments, inactivity_timeout=_QUIET_S
            ):
                if method is None:
                    break
                found.append(int(properties.message_id))
                channel.basic_ack(method.delivery_tag)
            channel.cancel()
        confirmed = {number for _, book in self._confirmed for number, _ in read_book(book)}
        there = set(found)
        return StreamCounts(len(confirmed), len(there), len(confirmed - there), len(found) - len(there))

    def _holds_nothing(self) -> bool:
        """Return whether no consumer holds a message: a leader learns of the end of remote consumers over a link."""
        rows = self.site.api("GET", "queues/%2F?columns=messages_unacknowledged")
        return not any(row["messages_unacknowledged"] for row in rows)

    # -- the nodes ----------------------------------------------------------------------------

    def placed(self) -> Mapping[str, QueuePlace]:
        """Return the placement of the queues, from a running node."""
        return self.site.queues(self.site.running[0])

    def leader(self) -> SiteNode:
        """Return the leader of most queues."""
        led = [placed.leader for placed in self.placed().values()]
        return max(self.site.members, key=lambda node: led.count(node.node))

    def wait_led_without(self, gone: SiteNode) -> None:
        """Wait until this node leads no queue, and every queue has a leader."""

        def led(each: QueuePlace) -> bool:
            return each.leader != gone.node and each.state == "running"

        self._wait_all(led, f"{gone.node} to be followed")

    def _wait_all(self, holds: Callable[[QueuePlace], bool], what: str) -> None:
        def hold() -> bool:
            placed = self.placed()
            return set(QUEUES) <= set(placed) and all(holds(each) for each in placed.values())

        self.site.wait(hold, what)

    def bring_back(self, node: SiteNode) -> Return:
        """Start a node on its existing data; return when its mirrors are synchronised."""
        before = {each.node: len(each.log_text()) for each in self.site.members}
        began_s = time.monotonic()
        self.site.start(node)
        self._wait_all(lambda each: node.node in each.synchronised, f"{node.node} to be synchronised")
        took_s = time.monotonic() - began_s
        logs = {each: each.log_text()[before[each.node] :] for each in self.site.members}
        lacks = [
            (int(copied), int(whole))
            for text in logs.values()
            for mirror, copied, whole in _LACKS.findall(text)
            if mirror == node.node
        ]
        return Return(
            backlog_bytes=sum(whole - copied for copied, whole in lacks),
            copied_bytes=sum(copied for copied, _ in lacks),
            quarantine=sum(int(end) - int(offset) for offset, end in _DIVERGED.findall(logs[node])),
            took_s=took_s,
        )
