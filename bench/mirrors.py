"""The cost and the use of mirrors: rows of a cluster of three nodes on one machine.

    mirrored            The loads of `publish` and `together` on a queue with mirrors on all nodes, window 2000;
                        publisher and consumer are at its leader. A confirm means that all three nodes have the message.
    mirrored-failover   The leader is killed while 5,000 messages/s are published. A client tries to publish at a
                        survivor until one message is confirmed. Every confirmed message must be there. Each node is
                        killed in turn, 20 times in all (3 times in a quick run): the median, and the worst.
    quorum-failover     The same with a quorum queue.
    stream-failover     The same with a stream.
    mirrored-stream     A publisher writes a stream of three replicas over the stream protocol; then a reader reads it
                        from its first message, at a node with a replica (`mirrored-stream-read`).
    mirrored-sync-pause A queue without mirrors has the backlog, 5,000 messages/s are published to it, and it gets two
                        mirrors: the longest time between two confirms until both are synchronised.

A round at whose end a mirror is not synchronised is an error without a figure. Processor time is that of all nodes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from bench.backlog import fill
from bench.client import Connection, LoadError
from bench.contenders import LEVERET, RABBITMQ, Node
from bench.failover import first_confirm, kills, rows, spread
from bench.load import ConsumeJob, PublishJob
from bench.mixed import declared, published_and_consumed
from bench.pacer import RATE, PaceJob, longest_pause_s
from bench.rows import Reading, Row, Scenario, Settings, Target, reading
from bench.streams import published_and_read
from bench.traffic import Load, queue_name
from bench.workers import QUEUE, Worker, alone, measured
from leveret.testing.network.ports import NotReady
from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_site import ClusterSite
from leveret.testing.sites.mirror_cluster import ClusterNode, MirrorCluster
from leveret.testing.sites.rabbitmq_cluster import RabbitCluster

NODES: Final = 3
WINDOW: Final = 2_000
RATIO_MIN: Final = 4.0
SYNC_PAUSE_MS_MAX: Final = 100.0
SYNC_TIMEOUT_S: Final = 300.0
POLICY: Final = "ha"
PATTERN: Final = f"^({QUEUE}|{queue_name(0)})$"
READY_TIMEOUT_S: Final = 60.0
COUNT_TIMEOUT_S: Final = 10.0
FAILOVERS: Final[dict[str, dict[str, str]]] = {
    "mirrored-failover": {},
    "quorum-failover": {"x-queue-type": "quorum"},
    "stream-failover": {"x-queue-type": "stream"},
}
"""The rows, and the arguments of their queues."""


class Measured(Protocol):
    """The measurements of a node's process."""

    def cpu_seconds(self) -> float:
        """Return the processor time since its start."""

    def rss_bytes(self) -> int:
        """Return the present resident memory."""


class ClusterContender:
    """A cluster of three nodes as one contender (bench.contenders.Node): the ports of the first, the sums of all."""

    def __init__(
        self,
        cluster: MirrorCluster,
        measured_nodes: Sequence[Measured],
        stream_ports: Sequence[int],
        folder: Path,
    ) -> None:
        """Prepare; nothing runs yet. `close` removes `folder`."""
        self.cluster = cluster
        self.stream_ports = stream_ports
        self.stream_port = stream_ports[0]
        self.amqp_port = cluster.nodes[0].amqp_port
        self.management_port = cluster.nodes[0].management_port
        self._measured = measured_nodes
        self._folder = folder

    @property
    def first(self) -> ClusterNode:
        """The node at which queues are declared, which therefore leads them."""
        return self.cluster.nodes[0]

    @property
    def others(self) -> list[ClusterNode]:
        """The nodes of their mirrors."""
        return list(self.cluster.nodes[1:])

    def start(self) -> object:
        """Start all nodes; return when they are a cluster."""
        self.cluster.form()
        return self

    def stop(self) -> int:
        """End the first node in order."""
        return self.first.stop()

    def kill9(self) -> None:
        """End the first node as a crash would."""
        self.first.kill9()

    def close(self) -> None:
        """End all nodes and remove all data."""
        self.cluster.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def rss_bytes(self) -> int:
        """Return the present resident memory of all nodes."""
        return sum(each.rss_bytes() for each in self._measured)

    def cpu_seconds(self) -> float:
        """Return the processor time of all nodes since their start."""
        return sum(each.cpu_seconds() for each in self._measured)


def make_leveret(folder: Path) -> Node:
    """Make a cluster of Leveret nodes; it is not started.

    Raises:
        LoadError: no cluster can be run here.
    """
    if reason := cluster_site.available():
        raise LoadError(reason)
    own = Path(tempfile.mkdtemp(prefix="cluster-", dir=folder))
    site = ClusterSite(own, NODES)
    ports = [each.stream_port for each in site.members]
    return ClusterContender(site, site.members, ports, own)


def make_rabbitmq(folder: Path) -> Node:
    """Make a cluster of RabbitMQ nodes; it is not started."""
    own = Path(tempfile.mkdtemp(prefix="cluster-", dir=folder))
    plugins = ("rabbitmq_management", "rabbitmq_stream")
    cluster = RabbitCluster(NODES, schedulers=None, parent_dir=own, plugins=plugins)
    return ClusterContender(cluster, cluster.rabbits, [each.stream_port for each in cluster.rabbits], own)


MAKERS: Final[dict[str, Callable[[Path], Node]]] = {LEVERET: make_leveret, RABBITMQ: make_rabbitmq}


# -- with mirrors -----------------------------------------------------------------------------


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    assert isinstance(node, ClusterContender)
    job = PublishJob(node.amqp_port, QUEUE, window=WINDOW, seconds=settings.warmup_s + settings.seconds)
    warmup_s, seconds = settings.warmup_s, settings.seconds
    with _mirrored(node) as connection, Worker(job) as publisher:
        publish = alone(node, publisher, warmup_s, seconds)
        found = connection.ready_messages(QUEUE)
    if found != publish.published:
        raise LoadError(f"{publish.published} messages published, {found} in the queue")
    with _mirrored(node), Worker(ConsumeJob(node.amqp_port, QUEUE)) as consumer, Worker(job) as publisher:
        both = measured(node, publisher, consumer, warmup_s, seconds)
    load = Load()
    with declared(node.amqp_port, load):
        _wait_synchronised(node, queue=queue_name(0))
        mixed = published_and_consumed(node, load, settings)
        _assert_synchronised(node, queue_name(0))
    return {
        "mirrored": reading(publish),
        "mirrored-together": reading(both),
        "mirrored-mixed": reading(mixed),
    }


@contextmanager
def _mirrored(node: ClusterContender) -> Iterator[Connection]:
    """Yield a connection to a queue with two synchronised mirrors; check them at the end, and delete the queue."""
    node.cluster.set_policy(POLICY, PATTERN, {"ha-mode": "all", "ha-sync-mode": "automatic"})
    connection = Connection(node.amqp_port)
    connection.declare_queue(QUEUE)
    try:
        _wait_synchronised(node)
        yield connection
        _assert_synchronised(node)
    finally:
        connection.delete_queue(QUEUE)
        connection.close()


def _wait_synchronised(
    node: ClusterContender, timeout_s: float = READY_TIMEOUT_S, queue: str = QUEUE
) -> None:
    node.cluster.wait_placed(
        queue, node.first, mirrors=node.others, synchronised=node.others, timeout_s=timeout_s
    )


def _assert_synchronised(node: ClusterContender, queue: str = QUEUE) -> None:
    placed = node.cluster.queue(queue)
    if placed is None or placed.leader != node.first.node or len(placed.synchronised) != NODES - 1:
        raise LoadError(f"a mirror fell behind: {placed}")


# -- fail-over --------------------------------------------------------------------------------


def _run_failover(node: Node, settings: Settings) -> dict[str, Reading]:
    assert isinstance(node, ClusterContender)
    found: dict[str, list[Reading]] = {name: [] for name in FAILOVERS}
    for turn in range(kills(settings)):
        for name, arguments in FAILOVERS.items():
            leader = node.cluster.nodes[turn % NODES]
            found[name].append(_fail_over(node, leader, arguments, settings))
            node.cluster.start(leader)
    return {key: row for name, each in found.items() for key, row in spread(each, name).items()}


def _fail_over(
    node: ClusterContender, leader: ClusterNode, arguments: dict[str, str], settings: Settings
) -> Reading:
    """Kill a queue's leader under load; return the time until the next confirm."""
    survivor, *others = [each for each in node.cluster.nodes if each is not leader]

    def assert_alive() -> None:
        if not survivor.alive:
            raise NotReady(f"{survivor.node} has ended\n{survivor.log_tail()}")

    with (
        _left(node, leader, [survivor, *others], arguments),
        Worker(PaceJob(leader.amqp_port, QUEUE, until_lost=True), "bench.pacer") as pacer,
    ):
        pacer.ready().go()
        time.sleep(2 * settings.warmup_s)
        killed = time.monotonic()
        leader.kill9()
        confirmed = first_confirm(survivor.amqp_port, assert_alive)
        lost = pacer.result()
    connection = Connection(survivor.amqp_port)
    found = _found(connection, lost.count)
    connection.delete_queue(QUEUE)
    connection.close()
    if found < lost.count:
        raise LoadError(f"{lost.count} messages confirmed by the old leader, {found} at the new one")
    details = {"messages": float(found), "confirmed": float(lost.count)}
    return Reading(confirmed - killed, details=details)


def _found(connection: Connection, wanted: int) -> int:
    """Return the queue's number of messages without the new leader's first; a broker may count a stream's late."""
    deadline = time.monotonic() + COUNT_TIMEOUT_S
    while (found := connection.ready_messages(QUEUE) - 1) < wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


@contextmanager
def _left(
    node: ClusterContender, leader: ClusterNode, others: Sequence[ClusterNode], arguments: dict[str, str]
) -> Iterator[None]:
    """Declare a queue with two synchronised mirrors for a block in which its leader is killed."""
    if arguments:
        # A quorum queue and a stream have their members without a policy.
        node.cluster.clear_policy(POLICY)
    else:
        node.cluster.set_policy(POLICY, PATTERN, {"ha-mode": "all", "ha-sync-mode": "automatic"})
    connection = Connection(leader.amqp_port)
    connection.declare_queue(QUEUE, arguments=arguments)
    node.cluster.wait_placed(QUEUE, leader, mirrors=others, synchronised=others, timeout_s=READY_TIMEOUT_S)
    try:
        yield
    finally:
        connection.socket.close()


# -- streams ----------------------------------------------------------------------------------


def _run_stream(node: Node, settings: Settings) -> dict[str, Reading]:
    assert isinstance(node, ClusterContender)
    return published_and_read(
        node, settings, read_at=node.stream_ports[1], names=("mirrored-stream", "mirrored-stream-read")
    )


# -- synchronisation --------------------------------------------------------------------------


def _run_sync(node: Node, settings: Settings) -> dict[str, Reading]:
    assert isinstance(node, ClusterContender)
    fill(node, settings.backlog)
    quiet_s = 2 * settings.warmup_s
    with Worker(PaceJob(node.amqp_port, QUEUE), "bench.pacer") as pacer:
        pacer.ready().go()
        began = time.monotonic()
        time.sleep(quiet_s)
        started = time.monotonic()
        node.cluster.set_policy(POLICY, PATTERN, {"ha-mode": "all", "ha-sync-mode": "automatic"})
        _wait_synchronised(node, SYNC_TIMEOUT_S)
        ended = time.monotonic()
        time.sleep(quiet_s)
        pacer.end()
        result = pacer.result()
    _assert_synchronised(node)
    pause_s = longest_pause_s(result.samples, started, ended)
    details = {
        "synchronised_s": ended - started,
        "mb_s": settings.backlog * PublishJob.body_bytes / 1e6 / (ended - started),
        "before_ms": longest_pause_s(result.samples, began + quiet_s / 2, started) * 1000,
    }
    return {"mirrored-sync-pause": Reading(pause_s * 1000, details=details)}


LOAD: Final = f"1000 B persistent, confirms, window {WINDOW}"
MIRRORED: Final = Scenario(
    (
        Row(
            "mirrored",
            f"publish to a queue mirrored on 3 nodes, {LOAD}",
            "msg/s",
            True,
            Target("ratio", RATIO_MIN),
        ),
        Row(
            "mirrored-together",
            f"publish and consume together, a queue mirrored on 3 nodes, {LOAD}",
            "msg/s",
            True,
            Target("ratio", RATIO_MIN),
        ),
        Row("mirrored-mixed", "mixed messages, a queue mirrored on 3 nodes", "msg/s", True),
    ),
    _run,
    makers=MAKERS,
)
MIRRORED_FAILOVER: Final = Scenario(
    (
        *rows("mirrored-failover", "a mirrored queue"),
        *rows("quorum-failover", "a quorum queue"),
        *rows("stream-failover", "a stream of three replicas"),
    ),
    _run_failover,
    once=True,
    makers=MAKERS,
)
MIRRORED_STREAM: Final = Scenario(
    (
        Row(
            "mirrored-stream",
            "publish to a stream of three replicas, 1000 B, confirms, window 10,000",
            "msg/s",
            True,
        ),
        Row("mirrored-stream-read", "read that stream at a replica, from its first message", "msg/s", True),
    ),
    _run_stream,
    makers=MAKERS,
)
MIRRORED_SYNC: Final = Scenario(
    (
        Row(
            "mirrored-sync-pause",
            f"longest pause between confirms while two mirrors synchronise the backlog, {RATE:,}/s published",
            "ms",
            False,
            Target("value", SYNC_PAUSE_MS_MAX),
        ),
    ),
    _run_sync,
    once=True,
    makers=MAKERS,
)
