"""Followers without links: a leader, unless a test makes something else of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from leveret.model.errors import NotFound, PreconditionFailed
from leveret.runtime.integrity.log_copies import LogCopy

PROGRESS = {"bytes_done": 250_000_000, "bytes_total": 10**9, "rate_bytes_s": 2e8, "seconds_left": 3.75}


def follower(name: str, node_id: str, **fields: Any) -> dict[str, Any]:
    """A row of a follower that streams."""
    return {
        "node_id": node_id,
        "name": name,
        "address": "127.0.0.1:40000",
        "state": "streaming",
        "in_sync": True,
        "connected_at_ms": 1_700_000_000_000,
        "lag_bytes": 0,
        "lag_records": 0,
        "lag_s": 0.0,
        "sent_bytes": 5000,
        "acked_bytes": 5000,
        "compression_ratio": 2.5,
        "progress": None,
        "joined_ms": 12,
        **fields,
    }


def message(offset: int, **fields: Any) -> dict[str, Any]:
    """A message that was set aside."""
    return {
        "report": "r1",
        "vhost": "/",
        "queue": "q",
        "offset": offset,
        "timestamp_ms": 1_700_000_000_000,
        "exchange": "",
        "routing_key": "q",
        "properties": {"delivery_mode": 2},
        "payload": f"message {offset}",
        "payload_encoding": "string",
        "settled": False,
        **fields,
    }


class FakeReplication:
    """Remembers what it was told.

    Attributes:
        leader: what is known of the leader; of followers only.
        on_promoted: called in the middle of a promotion, as the node is another one then.
        failure: what reading the messages ends with, after all of them.
    """

    def __init__(self) -> None:
        self.role = "leader"
        self.state = "leader"
        self.epoch = 3
        self.error = ""
        self.min_in_sync = 0
        self.followers: list[dict[str, Any]] = []
        self.leader: dict[str, Any] | None = None
        self.etcd: dict[str, Any] | None = None
        self.proxy: dict[str, Any] | None = None
        self.would_lose: dict[str, Any] = {"known": True, "messages": 12, "bytes": 3456, "seconds": 0.75}
        self.held_back: dict[str, Any] | None = None
        self.rows: list[dict[str, Any]] = []
        self.unrepaired: list[str] = []
        self.reports: list[dict[str, Any]] = []
        self.log_copies: list[LogCopy] = []
        self.quarantined: list[str] = []
        self.messages: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self.on_promoted: Callable[[], None] = lambda: None
        self.calls: list[Any] = []
        self.read = 0
        self.reading_loops: list[asyncio.AbstractEventLoop] = []

    def follow(self, state: str = "streaming", **fields: Any) -> None:
        """Be a follower in this state."""
        self.role, self.state = "follower", state
        self.leader = {
            "uri": "tcp://10.0.0.1:5679",
            "name": "leveret@a",
            "epoch": self.epoch,
            "state": state,
            "error": "",
            "connected_at_ms": 1_700_000_000_000,
            "position": 9000,
            "applied_position": 8000,
            "lag_bytes": 1000,
            "lag_records": 1_234_567,
            "lag_s": 1.5,
            "newest_at_ms": 1_700_000_000_123,
            "received_bytes": 70_000,
            "acked_position": 8000,
            "apply_delay_s": 0.0,
            "held_back": None,
            "progress": None,
            "in_sync": True,
            **fields,
        }

    def fence(self) -> None:
        """Be fenced by a node that is not known."""
        self.role = self.state = "fenced"

    def quarantine(self, *messages: dict[str, Any], report: str = "r1") -> None:
        """Have a report of these."""
        queues = [{"vhost": "/", "queue": "q", "messages": len(messages)}] if messages else []
        self.reports.append(
            {
                "id": report,
                "at_ms": 1_700_000_000_000,
                "from_epoch": 2,
                "logs": [{"path": name} for name in ("definitions", "queues/1", "queues/2")],
                "messages": len(messages),
                "octets": 400,
                "queues": queues,
            }
        )
        self.messages += messages

    @property
    def has_follower_in_sync(self) -> bool:
        return self.role != "leader" or any(each["in_sync"] for each in self.followers)

    def status(self) -> dict[str, Any]:
        in_sync = [each["name"] for each in self.followers if each["in_sync"]]
        return {
            "role": self.role,
            "epoch": self.epoch,
            "node_id": "1a2b",
            "node": "leveret@test",
            "state": self.state,
            "error": self.error,
            "incomplete": "",
            "listener": "127.0.0.1:5679",
            "confirm": "in_sync",
            "min_in_sync": self.min_in_sync,
            "below_min_in_sync": "block",
            "in_sync_count": len(in_sync),
            "is_short": len(in_sync) < self.min_in_sync,
            "position": 9000,
            "records": 70,
            "leader": self.leader,
            "followers": self.followers,
            "in_sync": in_sync,
            "etcd": self.etcd,
            "proxy": self.proxy,
            "proxied_here": 0,
            "scrub": {
                "running": False,
                "last_at_ms": 1_700_000_000_000,
                "chunks": 40,
                "damaged": 2,
                "repaired": 1,
                "error": "",
            },
            "verify": {"running": False, "octets_done": 0, "octets_total": 0},
        }

    async def promote(
        self, *, dry_run: bool, force: bool, apply_until_ms: int | None = None
    ) -> dict[str, Any]:
        self.calls.append(("promote", dry_run, force, apply_until_ms))
        if self.role != "follower":
            raise PreconditionFailed("this node is no follower")
        reason = None
        if self.state in ("joining", "catching_up") and not force:
            reason = f"this follower is {self.state}: it does not have all that the leader has"
        promoted = reason is None and not dry_run
        if promoted:
            await asyncio.sleep(0)
            self.role, self.state, self.leader = "leader", "leader", None
            self.epoch += 1
            self.on_promoted()
        return {
            "would_lose": self.would_lose,
            "state": self.state,
            "epoch": self.epoch,
            "promoted": promoted,
            "took_ms": 42 if promoted else None,
            "held_back": self.held_back,
            "set_aside": "r1" if promoted and self.held_back else None,
            "reason": reason,
        }

    @property
    def inspection(self) -> FakeReplication:
        return self

    async def verify(self, follower: str | None, deep: bool) -> list[dict[str, Any]]:
        self.calls.append(("verify", follower, deep))
        if follower is not None and follower not in [each["name"] for each in self.followers]:
            raise NotFound(f"no follower '{follower}' is connected")
        return self.rows

    async def scrub(self) -> dict[str, Any]:
        self.calls.append("scrub")
        damaged = 1 + len(self.unrepaired)
        return {
            "chunks": 40,
            "octets": 123_456_789,
            "damaged": damaged,
            "repaired": 1,
            "unrepaired": self.unrepaired,
        }

    async def copies(self, path: str) -> list[LogCopy]:
        """What is told of any log."""
        return self.log_copies

    async def quarantine_log(self, path: str) -> None:
        """Remembered."""
        self.quarantined.append(path)

    def divergent(self) -> list[dict[str, Any]]:
        self._note_loop()
        return self.reports

    def _note_loop(self) -> None:
        with suppress(RuntimeError):
            self.reading_loops.append(asyncio.get_running_loop())

    def divergent_part(self, report_id: str | None, first: int) -> Generator[dict[str, Any], None, None]:
        yield from islice(self.divergent_messages(report_id), first, None)

    def divergent_messages(self, report_id: str | None) -> Iterator[dict[str, Any]]:
        if report_id is not None and report_id not in [each["id"] for each in self.reports]:
            raise NotFound(f"there is no report '{report_id}'")
        for each in self.messages:
            if report_id in (None, each["report"]):
                self.read += 1
                self._note_loop()
                yield each
        if self.failure is not None:
            raise self.failure
