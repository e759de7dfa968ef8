"""The cost and the use of a follower: rows of a leader with one follower on the same machine.

Two runs; a third one needs etcd (`bench.failover`):

    with one     The loads of `publish`, `together` and `latency`; a message is confirmed when it is on both nodes'
                 disks. In every round the same node first runs without a follower, so that both figures are from the
                 same minute. RabbitMQ has no replica.
    joining      A leader has the backlog, and a publisher sends 5,000 messages/s. A fresh follower joins; it is stopped
                 and joins again with its data; its link is cut. Then all its data are compared, the leader is killed,
                 and the follower is promoted.

A round in which the follower was out of sync, even for a moment, is an error without a figure. So is a promotion after
which the queue lacks a confirmed message.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Self

import httpx

from bench.backlog import fill
from bench.client import Connection, LoadError
from bench.contenders import LEVERET, Node
from bench.mixed import declared, published_and_consumed
from bench.pacer import RATE, PaceJob, longest_pause_s
from bench.rows import (
    LATENCY_RATE,
    Reading,
    Row,
    Scenario,
    Settings,
    Target,
    paced,
    reading,
    run_publish,
    run_together,
)
from bench.traffic import Load
from bench.workers import QUEUE, Throughput, Worker
from leveret.storage import reserve
from leveret.testing.network.link_proxy import LinkProxy
from leveret.testing.network.ports import LOOPBACK, accepts, free_port, speaks_amqp, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites.follower_site import SECRET_FILE

SHARE_MIN: Final = 0.5
RATIO_MIN: Final = 2.0
JOIN_MB_S_MIN: Final = 200.0
JOIN_PAUSE_MS_MAX: Final = 100.0
REJOIN_MS_MAX: Final = 200.0
PROMOTION_S_MAX: Final = 1.0
POLL_S: Final = 0.05
DOOR_POLL_S: Final = 0.002
JOIN_TIMEOUT_S: Final = 120.0
HTTP_TIMEOUT_S: Final = 60.0


class Operator:
    """An operator's requests to a node over HTTP."""

    def __init__(self, node: Node) -> None:
        url = f"http://{LOOPBACK}:{node.management_port}/api/replication"
        self._http = httpx.Client(base_url=url, auth=("guest", "guest"), timeout=HTTP_TIMEOUT_S)

    def status(self) -> dict[str, Any]:
        """Return the replication status of the node, with a row for each follower."""
        return dict(self._ask("GET", "node"))

    def promote(self) -> dict[str, Any]:
        """Promote a follower; return the report when it leads."""
        return dict(self._ask("POST", "promote", {"dry_run": False, "force": False}))

    def differing(self) -> list[str]:
        """Have the leader compare all its logs with its followers' by checksum; return the differing logs."""
        rows = self._ask("POST", "verify", {"follower": None, "deep": True})
        if not rows:
            raise LoadError("there was nothing to compare")
        return [f"{row['log']}: {row['detail']}" for row in rows if not row["match"]]

    def close(self) -> None:
        """End the connection."""
        self._http.close()

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        answer = self._http.request(method, path, json=body)
        if answer.is_error:
            raise LoadError(f"{method} replication/{path}: {answer.status_code} {answer.text}")
        return answer.json()


class Follower:
    """A follower on the leader's machine: a node with data of its own, fresh at first."""

    def __init__(self, leader: LeveretProcess, parent_dir: Path) -> None:
        """Prepare a follower; nothing runs yet. The leader must listen for followers (`lead`)."""
        self.leader = leader
        self.process = LeveretProcess(parent_dir=parent_dir)
        self.follow(link_port(leader))
        self._asked = Operator(leader)
        self._connected_at_ms = -1
        give_secret(leader, self.process)

    def follow(self, port: int) -> None:
        """Follow this port from the next start on."""
        self.process.config["replication.follow"] = f"tcp://{LOOPBACK}:{port}"

    def start(self) -> dict[str, Any]:
        """Start the follower; return the leader's row of it when it is in sync."""
        self.process.launch()
        return self.streaming()

    def streaming(self) -> dict[str, Any]:
        """Wait until it streams in sync over a connection that is newer than at the last call; return its row."""
        found: dict[str, Any] = {}

        def streams() -> bool:
            self.process.server.assert_alive()
            row = self.seen()
            # It is in sync a moment after it streams, when it has acked the begin of the stream.
            if row.get("in_sync") and row["connected_at_ms"] > self._connected_at_ms:
                found.update(row)
            return bool(found)

        wait_until(streams, "a follower in sync", JOIN_TIMEOUT_S, interval_s=POLL_S)
        self._connected_at_ms = int(found["connected_at_ms"])
        return found

    def seen(self) -> dict[str, Any]:
        """Return the leader's present row of it, empty if there is none."""
        rows: list[dict[str, Any]] = self._asked.status()["followers"]
        return next((row for row in rows if row["state"] == "streaming"), rows[0] if rows else {})

    def stayed(self) -> None:
        """Check that it was in sync all the time since it began to stream.

        Raises:
            LoadError: it is not in sync, or its connection is a new one.
        """
        row = self.seen()
        if not row.get("in_sync") or row["connected_at_ms"] != self._connected_at_ms:
            raise LoadError(f"the follower fell behind: {row}\n{self.process.server.log_tail()}")

    def close(self) -> None:
        """End the follower and remove its data."""
        self._asked.close()
        self.process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def lead(node: LeveretProcess) -> None:
    """Have a node listen for followers; this restarts the node unless it listens already."""
    if "replication.port" not in node.config:
        node.config |= {"replication.bind": LOOPBACK, "replication.port": str(free_port())}
        node.restart()
        wait_until(lambda: accepts(link_port(node)), "the door for followers", HTTP_TIMEOUT_S)


def link_port(leader: LeveretProcess) -> int:
    """Return the port for followers of this node."""
    return int(leader.config["replication.port"])


def give_secret(leader: LeveretProcess, node: LeveretProcess) -> None:
    """Copy the leader's secret, as its operator would."""
    node.data_dir.mkdir(mode=0o700, parents=True)
    shutil.copyfile(leader.data_dir / SECRET_FILE, node.data_dir / SECRET_FILE)
    (node.data_dir / SECRET_FILE).chmod(0o400)


# -- with one ---------------------------------------------------------------------------------


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    if not isinstance(node, LeveretProcess):
        readings = _readings(
            reading(run_publish(node, settings)), reading(run_together(node, settings)), paced(node, settings)
        )
        return readings | {"follower-mixed": reading(_mixed(node, settings))}
    lead(node)
    without, mixed_without = run_publish(node, settings), _mixed(node, settings)
    with Follower(node, settings.folder) as follower:
        follower.start()
        publish = _followed(follower, lambda: run_publish(node, settings))
        both = _followed(follower, lambda: run_together(node, settings))
        mixed = _followed(follower, lambda: _mixed(node, settings))
        ages = paced(node, settings)
        follower.stayed()
    return _readings(publish, both, ages) | {
        "follower-share": _share(publish, without),
        "follower-mixed": mixed,
        "follower-mixed-share": _share(mixed, mixed_without),
    }


def _share(found: Reading, without: Throughput) -> Reading:
    return Reading(found.value / without.rate, details={"without": without.rate, "with": found.value})


def _mixed(node: Node, settings: Settings) -> Throughput:
    load = Load()
    with declared(node.amqp_port, load):
        return published_and_consumed(node, load, settings)


def _followed(follower: Follower, run: Callable[[], Throughput]) -> Reading:
    """Run with a follower in sync; the processor time is that of both nodes."""
    before_s = follower.process.cpu_seconds()
    outcome = run()
    follower.stayed()
    cpu_us = (follower.process.cpu_seconds() - before_s) / outcome.published * 1e6
    details = reading(outcome).details | {"leader_cpu_us": outcome.broker_cpu_us, "follower_cpu_us": cpu_us}
    return Reading(outcome.rate, outcome.broker_cpu_us + cpu_us, details)


def _readings(publish: Reading, both: Reading, ages: Throughput) -> dict[str, Reading]:
    return {"follower": publish, "follower-together": both} | {
        f"follower-latency-{name}": Reading(ages.ages_us[name] / 1000, details=ages.ages_us)
        for name in ("p50", "p99")
    }


# -- joining ----------------------------------------------------------------------------------


def _run_join(node: Node, settings: Settings) -> dict[str, Reading]:
    assert isinstance(node, LeveretProcess)
    lead(node)
    fill(node, settings.backlog)
    quiet_s = 2 * settings.warmup_s
    with Follower(node, settings.folder) as follower, LinkProxy(link_port(node)) as link:
        joined, live = _join(follower, quiet_s)
        again = _join_again(follower)
        cut, more = _cut(follower, link, quiet_s)
        with closing(Operator(node)) as operator:
            differing = operator.differing()
        if differing:
            raise LoadError(f"leader and follower differ: {'; '.join(differing)}")
        promoted = _promote(follower, settings.backlog + live + more)
    return joined | again | cut | promoted


def _join(follower: Follower, quiet_s: float) -> tuple[dict[str, Reading], int]:
    """Have it join beside a publisher; return the readings, and the number of published messages.

    The publisher also runs for `quiet_s` before and after, and its pauses then are the reference.
    """
    # The reserve that the leader keeps for a full disk is no data.
    files = [
        each for each in follower.leader.data_dir.rglob("*") if each.is_file() and each.name != reserve.FILE
    ]
    backlog_bytes = sum(each.stat().st_size for each in files)
    with Worker(PaceJob(follower.leader.amqp_port, QUEUE), "bench.pacer") as pacer:
        pacer.ready().go()
        began = time.monotonic()
        time.sleep(quiet_s)
        started = time.monotonic()
        row = follower.start()
        ended = time.monotonic()
        time.sleep(quiet_s)
        pacer.end()
        result = pacer.result()
    joined_s = row["joined_ms"] / 1000
    pause_s = longest_pause_s(result.samples, started, ended)
    details = {
        "joined_s": joined_s,
        "from_start_s": ended - started,
        "held_mb": backlog_bytes / 1e6,
        "sent_mb": row["sent_bytes"] / 1e6,
    }
    pauses = {
        "before_ms": longest_pause_s(result.samples, began + quiet_s / 2, started) * 1000,
        "after_ms": longest_pause_s(result.samples, ended, ended + quiet_s) * 1000,
    }
    readings = {
        "join": Reading(backlog_bytes / joined_s / 1e6, details=details),
        "join-pause": Reading(pause_s * 1000, details=pauses),
    }
    return readings, result.count


def _join_again(follower: Follower) -> dict[str, Reading]:
    """Restart it in order, then after a kill, with all its data."""
    follower.process.stop()
    row = follower.start()
    follower.process.kill9()
    crashed = follower.start()
    details = {
        "sent_bytes": float(row["sent_bytes"]),
        "after_kill9_ms": float(crashed["joined_ms"]),
        "after_kill9_sent_bytes": float(crashed["sent_bytes"]),
    }
    return {"rejoin": Reading(row["joined_ms"], details=details)}


def _cut(follower: Follower, link: LinkProxy, quiet_s: float) -> tuple[dict[str, Reading], int]:
    """Cut its link beside a publisher; it lacks only the messages that are published until it is back."""
    follower.process.stop()
    follower.follow(link.port)
    follower.start()
    with Worker(PaceJob(follower.leader.amqp_port, QUEUE), "bench.pacer") as pacer:
        pacer.ready().go()
        time.sleep(quiet_s)
        cut_at = time.monotonic()
        link.cut(abruptly=True)
        row = follower.streaming()
        back_at = time.monotonic()
        time.sleep(quiet_s)
        pacer.end()
        result = pacer.result()
    details = {
        "from_cut_ms": (back_at - cut_at) * 1000,
        "sent_bytes": float(row["sent_bytes"]),
        "pause_ms": longest_pause_s(result.samples, cut_at, back_at) * 1000,
    }
    return {"rejoin-cut": Reading(row["joined_ms"], details=details)}, result.count


def _promote(follower: Follower, published: int) -> dict[str, Reading]:
    """Kill the leader, and promote the follower; check that it has all messages."""
    process = follower.process
    follower.leader.kill9()
    with closing(Operator(process)) as operator, ThreadPoolExecutor(1) as pool:
        asked = time.monotonic()
        answer = pool.submit(operator.promote)
        opened = wait_amqp(process)
        outcome = answer.result()
    if not outcome["promoted"]:
        raise LoadError(f"promotion: {outcome['reason']}")
    connection = Connection(process.amqp_port)
    found = connection.ready_messages(QUEUE)
    connection.close()
    if found != published:
        raise LoadError(f"{published} messages confirmed, {found} after the promotion")
    details = {"took_ms": float(outcome["took_ms"]), "messages": float(found)}
    return {"follower-promotion": Reading(opened - asked, details=details)}


def wait_amqp(process: LeveretProcess) -> float:
    """Wait until the node serves AMQP clients; return the time."""

    def answers() -> bool:
        process.server.assert_alive()
        return speaks_amqp(process.amqp_port)

    wait_until(answers, "an AMQP door after a promotion", HTTP_TIMEOUT_S, interval_s=DOOR_POLL_S)
    return time.monotonic()


LOAD: Final = "1000 B persistent, confirms, window 1000"
FOLLOWER: Final = Scenario(
    (
        Row(
            "follower",
            f"publish with one in-sync follower (RabbitMQ: no replica), {LOAD}",
            "msg/s",
            True,
            Target("ratio", RATIO_MIN),
        ),
        Row(
            "follower-share",
            "that rate by the rate without the follower",
            "share",
            True,
            Target("value", SHARE_MIN),
        ),
        Row(
            "follower-together",
            f"publish and consume together with one in-sync follower (RabbitMQ: no replica), {LOAD}",
            "msg/s",
            True,
        ),
        Row(
            "follower-mixed",
            "mixed messages with one in-sync follower (RabbitMQ: no replica)",
            "msg/s",
            True,
        ),
        Row(
            "follower-mixed-share",
            "that rate by the rate without the follower",
            "share",
            True,
            Target("value", SHARE_MIN),
        ),
        Row(
            "follower-latency-p50",
            f"end-to-end latency at {LATENCY_RATE:,}/s with one in-sync follower (RabbitMQ: no replica), p50",
            "ms",
            False,
        ),
        Row(
            "follower-latency-p99",
            f"end-to-end latency at {LATENCY_RATE:,}/s with one in-sync follower (RabbitMQ: no replica), p99",
            "ms",
            False,
        ),
    ),
    _run,
)
JOIN: Final = Scenario(
    (
        Row(
            "join",
            f"a fresh follower joins, backlog standing, {RATE:,}/s published beside it",
            "MB/s",
            True,
            Target("value", JOIN_MB_S_MIN),
        ),
        Row(
            "join-pause",
            "longest pause between that publisher's confirms",
            "ms",
            False,
            Target("value", JOIN_PAUSE_MS_MAX),
        ),
        Row(
            "rejoin",
            "the follower joins again with identical data",
            "ms",
            False,
            Target("value", REJOIN_MS_MAX),
        ),
        Row(
            "rejoin-cut",
            f"the follower joins again after a cut of its link, {RATE:,}/s published beside it",
            "ms",
            False,
            Target("value", REJOIN_MS_MAX),
        ),
        Row(
            "follower-promotion",
            "promotion of the follower, until its AMQP port answers",
            "s",
            False,
            Target("value", PROMOTION_S_MAX),
        ),
    ),
    _run_join,
    once=True,
    brokers=(LEVERET,),
)
