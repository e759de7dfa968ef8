"""Automatic fail-over: etcd elects the follower of a leader that dies.

One run has a leader, one follower and an etcd of one member on the same machine, with default settings except for
addresses. The leader is killed while a publisher sends 5,000 messages/s. A client then tries to publish at the
follower until one message is confirmed, and the time from the kill until then is measured. Every confirmed message
must be in the queue. Then the killed node follows the new leader, which is killed next: 20 times in all, 3 times in a
quick run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

from bench.client import RECV_BYTES, Connection, LoadError, Message
from bench.contenders import LEVERET, Node
from bench.followers import DOOR_POLL_S, JOIN_TIMEOUT_S, Operator, give_secret, lead
from bench.load import Confirms
from bench.pacer import PaceJob
from bench.rows import Reading, Row, Scenario, Settings, Target
from bench.workers import QUEUE, Worker
from leveret.testing.network.ports import LOOPBACK, NotReady, free_port, wait_until
from leveret.testing.servers import etcd
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.etcd import EtcdCluster

KILLS: Final = 20
KILLS_QUICK: Final = 3
FAILOVER_S_MAX: Final = 0.3
WORST_S_MAX: Final = 0.6
FAILOVER_TIMEOUT_S: Final = 60.0
BODY_BYTES: Final = 1000


def kills(settings: Settings) -> int:
    """Return the number of kills."""
    return KILLS_QUICK if settings.quick else KILLS


def spread(readings: Sequence[Reading], name: str) -> dict[str, Reading]:
    """Return the readings of all kills: the median as `name`, and the worst; both have all times and message counts."""
    times = [each.value for each in readings]
    details = {key: sum(each.details[key] for each in readings) for key in ("messages", "confirmed")}
    details |= {f"kill-{number:02}": time_s for number, time_s in enumerate(times, 1)}
    return {
        name: Reading(statistics.median(times), details=details),
        f"{name}-worst": Reading(max(times), details=details),
    }


def rows(name: str, what: str) -> tuple[Row, Row]:
    """Return the rows that `spread` fills."""
    title = f"fail-over of {what}, from kill -9 of the leader until a publish is confirmed"
    return (
        Row(name, f"{title}, median", "s", False, Target("value", FAILOVER_S_MAX)),
        Row(f"{name}-worst", f"{title}, worst", "s", False, Target("value", WORST_S_MAX)),
    )


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    assert isinstance(node, LeveretProcess)
    if missing := etcd.available():
        raise LoadError(missing)
    leader, follower = node, LeveretProcess(parent_dir=settings.folder)
    with EtcdCluster() as cluster:
        try:
            _begin(leader, follower, cluster.setting)
            found = []
            for turn in range(kills(settings)):
                if turn:
                    leader, follower = follower, leader
                    follower.launch()
                    _wait_in_sync(leader)
                found.append(_fail_over(leader, follower, settings))
            return spread(found, "failover")
        finally:
            for each in (leader, follower):
                if each is not node:
                    each.close()


def _begin(leader: LeveretProcess, follower: LeveretProcess, endpoints: str) -> None:
    """Start both nodes, the leader first; return when the follower is in sync."""
    # With etcd any node may be elected, so both must have the secret before. A leader without etcd makes one.
    lead(leader)
    give_secret(leader, follower)
    follower.config |= {"replication.bind": LOOPBACK, "replication.port": str(free_port())}
    for one in (leader, follower):
        one.config["cluster.etcd.endpoints"] = endpoints
    leader.restart()
    follower.launch()
    _wait_in_sync(leader)


def _wait_in_sync(leader: LeveretProcess) -> None:
    with closing(Operator(leader)) as operator:

        def in_sync() -> bool:
            leader.server.assert_alive()
            return any(row["in_sync"] for row in operator.status()["followers"])

        wait_until(in_sync, "a follower in sync", JOIN_TIMEOUT_S)


def _fail_over(leader: LeveretProcess, follower: LeveretProcess, settings: Settings) -> Reading:
    """Kill the leader under load; return the time until the next confirm."""
    connection = Connection(leader.amqp_port)
    connection.declare_queue(QUEUE)
    with Worker(PaceJob(leader.amqp_port, QUEUE, until_lost=True), "bench.pacer") as pacer:
        pacer.ready().go()
        time.sleep(2 * settings.warmup_s)
        killed = time.monotonic()
        leader.kill9()
        confirmed_at = _confirmed(follower)
        lost = pacer.result()
    connection.socket.close()
    connection = Connection(follower.amqp_port)
    found = connection.ready_messages(QUEUE) - 1
    connection.delete_queue(QUEUE)
    connection.close()
    if found < lost.count:
        raise LoadError(f"{lost.count} messages confirmed by the old leader, {found} at the new one")
    details = {"messages": float(found), "confirmed": float(lost.count)}
    return Reading(confirmed_at - killed, details=details)


def _confirmed(node: LeveretProcess) -> float:
    """Try to publish a message at a node until one is confirmed; return the time of the confirm."""
    try:
        return first_confirm(node.amqp_port, node.server.assert_alive)
    except NotReady as late:
        raise NotReady(f"{late}\n{node.server.log_tail()}") from None


def first_confirm(
    port: int, assert_alive: Callable[[], None], timeout_s: float = FAILOVER_TIMEOUT_S
) -> float:
    """Try to publish a message at a port until one is confirmed; return the time of the confirm.

    Raises:
        NotReady: none was confirmed in time, or `assert_alive` raised it.
    """
    message = Message("", QUEUE, BODY_BYTES, persistent=True).encode(bytes(BODY_BYTES))

    def is_confirmed() -> bool:
        assert_alive()
        confirms = Confirms()
        try:
            connection = Connection(port)
            with connection.socket as listener:
                connection.confirm_select()
                listener.sendall(message)
                confirms.feed(listener.recv(RECV_BYTES))
        except (LoadError, OSError):
            # A message that is refused, as RabbitMQ does while a mirror takes over, is not confirmed.
            return False
        return confirms.count == 1

    wait_until(is_confirmed, "a confirm of the new leader", timeout_s, interval_s=DOOR_POLL_S)
    return time.monotonic()


FAILOVER: Final = Scenario(rows("failover", "a node by etcd"), _run, once=True, brokers=(LEVERET,))
