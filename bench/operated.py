"""What publishers notice while a cluster of three nodes is operated, or loses what it stands on.

    rolling-pause       The three nodes are restarted, one after the other, each once all mirrors are synchronised. A
                        publisher that knows all three addresses sends 1,000 messages/s to a mirrored queue; when its
                        connection ends it connects to the next node. The longest time between two confirms.
    rebalance-pause     The queue and nine more are led by the first node, at which the publisher is: `rebalance`.
    forgetting-pause    The third node is stopped and forgotten; the publisher is at the first.
    joining-pause       It comes back without data as a new node, and gets mirrors of all queues.
    lost-node           The leader's process is stopped by SIGSTOP, and its sockets stay: for the others it is as a lost
                        machine, and no kernel reports a death. Seconds until a client that retries at another node has
                        a publish confirmed, with default settings (of RabbitMQ: `net_ticktime` of 60 s).
    etcd-away-pause     Leveret's etcd stands still for a second; a node is certain of its lease for longer.

Each round has all of them in this order, on one cluster.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from bench.client import Connection, LoadError
from bench.contenders import RABBITMQ, Node
from bench.failover import first_confirm
from bench.mirrors import MAKERS, NODES, POLICY, ClusterContender
from bench.pacer import PaceJob, longest_pause_s
from bench.process import Result
from bench.rows import Reading, Row, Scenario, Settings, Target
from bench.workers import QUEUE, Worker
from leveret.testing.network.ports import wait_until
from leveret.testing.servers.rabbitmq import RabbitNode
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from leveret.testing.sites.mirror_cluster import ClusterNode
from leveret.testing.sites.rabbitmq_cluster import RabbitCluster

RATE: Final = 1_000
QUEUES: Final = (QUEUE, *(f"{QUEUE}-{number}" for number in range(1, 10)))
ROLLING_MS_MAX: Final = 300.0
OPERATION_MS_MAX: Final = 200.0
ETCD_MS_MAX: Final = 200.0
LOST_S_MAX: Final = 3.0
ETCD_AWAY_S: Final = 1.0
WHOLE_TIMEOUT_S: Final = 180.0
LOST_ROUNDS: Final = 5
LOST_ROUNDS_RABBITMQ: Final = 1
LOST_TIMEOUT_S: Final = 150.0
"""RabbitMQ believes in a silent node for up to 75 s."""
QUIET_S_MIN: Final = 2.0
"""The first confirm of a cluster may take a second on a busy machine."""
AFTER_S: Final = 1.0
"""The pause that an operation causes may begin a moment after it was answered."""


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    assert isinstance(node, ClusterContender)
    node.cluster.set_policy(POLICY, f"^{QUEUE}", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    connection = Connection(node.amqp_port)
    for queue in QUEUES:
        connection.declare_queue(queue)
    connection.close()
    _wait_whole(node)
    quiet_s = max(2 * settings.warmup_s, QUIET_S_MIN)
    found = {"rolling-pause": _rolling(node, quiet_s)}
    _wait_whole(node)
    found |= _membership(node, quiet_s)
    _wait_whole(node)
    found["lost-node"] = _lost(node, settings)
    if isinstance(node.cluster, ClusterSite):
        _wait_whole(node)
        found["etcd-away-pause"] = _etcd_away(node, node.cluster, quiet_s)
    return found


def _wait_whole(node: ClusterContender) -> None:
    """Wait until all nodes run, and each queue has two synchronised mirrors."""

    def is_whole() -> bool:
        try:
            placed = node.cluster.queues(node.cluster.nodes[0])
        except OSError:
            return False
        return all(
            queue in placed
            and placed[queue].state == "running"
            and len(placed[queue].synchronised) == NODES - 1
            for queue in QUEUES
        )

    wait_until(is_whole, "two synchronised mirrors of each queue", WHOLE_TIMEOUT_S)


class _Span:
    """The times of an operation, and the publisher's result once it has ended."""

    def __init__(self) -> None:
        self.steps: dict[str, tuple[float, float]] = {}
        self.result: Result | None = None

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Note an operation."""
        began = time.monotonic()
        yield
        time.sleep(AFTER_S)
        self.steps[name] = began, time.monotonic()

    def pause(self, name: str) -> Reading:
        """Return the longest pause in an operation, in milliseconds; the details have that of the quiet time before."""
        assert self.result is not None
        samples = self.result.samples
        began, ended = self.steps[name]
        before = longest_pause_s(samples, samples[0][0], min(start for start, _ in self.steps.values()))
        details = {"took_s": ended - began - AFTER_S, "before_ms": before * 1000}
        return Reading(longest_pause_s(samples, began, ended) * 1000, details=details)


@contextmanager
def _published(ports: list[int], quiet_s: float) -> Iterator[_Span]:
    """Publish at the first of these ports during a block; later ones are for a publisher that loses its node."""
    span = _Span()
    job = PaceJob(ports[0], QUEUE, rate=RATE, others=tuple(ports[1:]))
    with Worker(job, "bench.pacer") as pacer:
        pacer.ready().go()
        time.sleep(quiet_s)
        yield span
        pacer.end()
        span.result = pacer.result()


def _rolling(node: ClusterContender, quiet_s: float) -> Reading:
    """Restart all nodes in order; the publisher is at the first, which leads the queue."""
    ports = [each.amqp_port for each in node.cluster.nodes]
    with _published(ports, quiet_s) as span, span.step("rolling"):
        for each in node.cluster.nodes:
            each.stop()
            node.cluster.start(each)
            _wait_whole(node)
    return span.pause("rolling")


def _membership(node: ClusterContender, quiet_s: float) -> dict[str, Reading]:
    """Move all leaders to the first node, rebalance, forget the third node, and add it as a new one."""
    cluster = node.cluster
    first, second, third = cluster.nodes
    # A restart of the others leaves all queues to the first.
    for each in (second, third):
        each.stop()
        cluster.start(each)
        _wait_whole(node)
    with _published([first.amqp_port], quiet_s) as span:
        with span.step("rebalance"):
            cluster.api("POST", "rebalance/queues", {}, at=first)
            _wait_whole(node)
        with span.step("forgetting"):
            _end(third)
            if not cluster.forget(third, at=first):
                raise LoadError(f"{third.node} was not forgotten")
        with span.step("joining"):
            _join_anew(node, third)
            _wait_whole(node)
    return {f"{name}-pause": span.pause(name) for name in ("rebalance", "forgetting", "joining")}


def _end(node: ClusterNode) -> None:
    if isinstance(node, RabbitNode):
        node.ctl("stop_app")
    else:
        node.stop()


def _join_anew(node: ClusterContender, third: ClusterNode) -> None:
    """Start a forgotten node as a new one."""
    cluster = node.cluster
    if isinstance(cluster, RabbitCluster):
        third.ctl("force_reset")
        third.ctl("join_cluster", node.first.node)
        third.ctl("start_app")
    elif isinstance(cluster, ClusterSite) and isinstance(third, SiteNode):
        third.wipe()
        cluster.give_secret(third)
        cluster.start(third)
    cluster.wait_members()


def _lost(node: ClusterContender, settings: Settings) -> Reading:
    """Have leaders stand still for good, one after the other; return the median time until the next confirm."""
    most = LOST_ROUNDS_RABBITMQ if node.cluster.kind == RABBITMQ else LOST_ROUNDS
    times = sorted(_lose(node) for _ in range(1 if settings.quick else most))
    details = {f"loss-{number:02}": time_s for number, time_s in enumerate(times, 1)}
    return Reading(times[len(times) // 2], details=details)


def _lose(node: ClusterContender) -> float:
    cluster = node.cluster
    placed = cluster.queues(cluster.nodes[0])[QUEUE]
    leader = next(each for each in cluster.nodes if each.node == placed.leader)
    survivor = next(each for each in cluster.nodes if each is not leader)
    lost = time.monotonic()
    _stop_still(leader)
    try:
        confirmed = first_confirm(survivor.amqp_port, lambda: None, LOST_TIMEOUT_S)
    finally:
        leader.kill9()
    cluster.start(leader)
    _wait_whole(node)
    return confirmed - lost


def _stop_still(node: ClusterNode) -> None:
    """Stop a node's process by SIGSTOP."""
    if isinstance(node, SiteNode):
        node.pause()
    elif isinstance(node, RabbitNode):
        os.kill(node.pid, signal.SIGSTOP)


def _etcd_away(node: ClusterContender, site: ClusterSite, quiet_s: float) -> Reading:
    """Have all members of etcd stand still for a while."""
    with _published([node.amqp_port], quiet_s) as span, span.step("etcd"):
        for member in site.etcd.members:
            member.pause()
        try:
            time.sleep(ETCD_AWAY_S)
        finally:
            for member in site.etcd.members:
                member.go_on()
        time.sleep(AFTER_S)
    return span.pause("etcd")


def _rows(titles: Mapping[str, tuple[str, float]]) -> tuple[Row, ...]:
    return tuple(
        Row(name, title, "ms", False, Target("value", limit)) for name, (title, limit) in titles.items()
    )


_WHILE: Final = "longest pause between confirms of a mirrored queue while"
OPERATED: Final = Scenario(
    (
        *_rows(
            {
                "rolling-pause": (f"{_WHILE} the 3 nodes restart in order", ROLLING_MS_MAX),
                "rebalance-pause": (f"{_WHILE} the leaders of 10 queues are spread", OPERATION_MS_MAX),
                "forgetting-pause": (f"{_WHILE} a node is stopped and forgotten", OPERATION_MS_MAX),
                "joining-pause": (f"{_WHILE} a node joins and gets mirrors", OPERATION_MS_MAX),
            }
        ),
        Row(
            "lost-node",
            "a leader stands still for good: until a publish is confirmed at another node, median",
            "s",
            False,
            Target("value", LOST_S_MAX),
        ),
        *_rows({"etcd-away-pause": (f"{_WHILE} etcd stands still for {ETCD_AWAY_S:g} s", ETCD_MS_MAX)}),
    ),
    _run,
    once=True,
    makers=MAKERS,
)
