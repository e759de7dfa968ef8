"""Two sites of three nodes, rounds of faults from a seed: what is done to the nodes, and the books after each round."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pika.exceptions

from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.process import descendants
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from leveret.testing.sites.standby_cluster import StandbyCluster
from tests.e2e.sites_graves import DYING, GRAVE, Graves
from tests.e2e.test_rejoin_sites import divergent

VHOSTS: Final = ("orders", "shop")
ARCHIVE: Final = "standby.replication.downstream.data_dir"
QUEUES: Final = ("q", "r")
PER_QUEUE: Final = 20
DYING_S: Final = 3.0
"""The longest time in which messages die before the upstream is lost."""
_BROKEN: Final = (pika.exceptions.AMQPError, OSError)


class SitesTorture:
    """Rounds of transfer under faults, the loss of the upstream, promotion under faults, books, and failback.

    A node that ends by itself is started again, so that the rounds go on; `run` fails for it at its end.

    Attributes:
        ended: a line for each end of a node by itself, with the last line of its log.
    """

    def __init__(self, sites: StandbyCluster, seed: int) -> None:
        """Torture these sites, both clusters."""
        self._sites = sites
        self.ended: list[str] = []
        self._killed: set[SiteNode] = set()
        sites.on_look = self._start_ended
        self._random = random.Random(seed)
        self._graves = Graves(sites, VHOSTS, random.Random(f"graves {seed}"), self._archive_of)
        self._faults: dict[str, Callable[[], None]] = {
            "a node of the upstream is killed": self._kill_up,
            "a node of the upstream is suspended": self._pause_up,
            "leaders of the upstream move": self._move_leaders,
            "the upstream's etcd is killed": lambda: self._kill_etcd(self._up),
            "a node of the downstream is killed": self._kill_down,
            "a node of the downstream is suspended": self._pause_down,
            "the downstream's etcd is killed": lambda: self._kill_etcd(self._down),
            "a transfer process is killed": self._kill_pipeline,
            "the link is off for a while": self._disconnect,
        }

    @property
    def _up(self) -> ClusterSite:
        assert self._sites.source is not None
        return self._sites.cluster if self._sites.has_turned else self._sites.source

    @property
    def _down(self) -> ClusterSite:
        assert self._sites.source is not None
        return self._sites.source if self._sites.has_turned else self._sites.cluster

    def _archive_of(self, vhost: str) -> Path:
        """Return the archive in which the downstream has a vhost."""
        holder = self._sites.places()[vhost]["node"]
        node = next(node for node in self._down.members if node.node == holder)
        return Path(node.config.get(ARCHIVE, str(node.data_dir / "standby")))

    def _apart(self) -> int:
        """Return how many queues have a grave that another node leads."""
        found = [
            self._up.queues(next(each for each in self._up.members if each.alive), vhost) for vhost in VHOSTS
        ]
        return sum(placed[queue].leader != placed[GRAVE].leader for placed in found for queue in DYING)

    def run(self, rounds: int) -> None:
        """Play the rounds; each begins with one site that follows the other."""
        for number in range(1, rounds + 1):
            self.publish()
            # One node may lead all queues after a promotion.
            self._random.choice(self._up.members).ctl("rebalance", "all")
            self._graves.let_die()
            print(
                f"round {number}: {self._apart()} dying queues and their graves have two leaders", flush=True
            )
            names = self._random.sample(sorted(self._faults), self._random.randint(1, 3))
            for name in names:
                print(f"round {number}: {name}", flush=True)
                self._faults[name]()
            self._sites.wait_following()
            self.publish(acked=0.4)
            self._graves.settle_some()
            self._graves.prepare_to_die()
            self._sites.wait_transferred()
            self._start_ended()
            self._graves.die()
            time.sleep(self._random.uniform(0.0, DYING_S))
            self._killed.update(self._up.members)
            self._sites.lose_upstream()
            self._graves.end()
            print(f"round {number}: the upstream is lost", flush=True)
            self._promote(number)
            self._sites.check_recovered()
            self._graves.check()
            self._sites.books.expected.clear()
            self._sites.books.unsure.clear()
            self._graves.forget()
            print(f"round {number}: balanced", flush=True)
            if number < rounds:
                self._return(number)
        self._start_ended()
        assert not self.ended, "\n".join(["nodes ended by themselves, and were started again:", *self.ended])

    def _start_ended(self) -> None:
        """Start the nodes that ended by themselves again, and note their ends."""
        for site in (self._up, self._down):
            for node in site.members:
                if not node.alive and node not in self._killed:
                    self.ended.append(f"{node.node}: {node.log_tail().strip().splitlines()[-1:]}")
                    print(f"ended by itself: {self.ended[-1]}", flush=True)
                    node.launch()

    def _kill(self, node: SiteNode) -> None:
        self._killed.add(node)
        node.kill9()

    def _start(self, site: ClusterSite) -> None:
        """Start all nodes of a site, those that ended by themselves first."""
        self._start_ended()
        site.start_all()
        self._killed.difference_update(site.members)

    def publish(self, *, acked: float = 0.0, at: LeveretProcess | None = None) -> None:
        """Publish to all queues; one whose node is lost meanwhile may have a message more."""
        for vhost in VHOSTS:
            for queue in QUEUES:
                try:
                    self._sites.publish(vhost, queue, PER_QUEUE, acked=acked, at=at)
                except _BROKEN as error:
                    if acked:
                        raise
                    print(f"publishing to {vhost}/{queue} broke off: {error!r}", flush=True)

    # -- faults -------------------------------------------------------------------------------

    def _one_of(self, site: ClusterSite) -> tuple[SiteNode, SiteNode]:
        """Return a node, and another one that stays."""
        victim, other = self._random.sample(site.members, 2)
        return victim, other

    def _while_publishing(self, fault: Callable[[], object], at: SiteNode) -> None:
        publisher = threading.Thread(target=self.publish, kwargs={"at": at})
        publisher.start()
        try:
            fault()
        finally:
            publisher.join()

    def _kill_up(self) -> None:
        victim, other = self._one_of(self._up)
        self._while_publishing(lambda: self._kill(victim), other)
        self._start(self._up)

    def _pause_up(self) -> None:
        victim, other = self._one_of(self._up)
        with self._up.paused(victim):
            self.publish(at=other)
        self._up.wait_members()

    def _move_leaders(self) -> None:
        victim, other = self._one_of(self._up)
        self._while_publishing(lambda: self._up.drain(victim), other)
        self._up.revive(victim)

    def _kill_down(self) -> None:
        victim, _ = self._one_of(self._down)
        self._while_publishing(lambda: self._kill(victim), self._up.members[0])
        self._start(self._down)

    def _pause_down(self) -> None:
        victim, _ = self._one_of(self._down)
        with self._down.paused(victim):
            self.publish()
        self._down.wait_members()

    def _kill_etcd(self, site: ClusterSite) -> None:
        site.etcd.members[0].kill9()
        site.etcd.members[0].restart()
        self._start(site)

    def _kill_pipeline(self) -> None:
        victim, _ = self._one_of(self._down)
        self._while_publishing(lambda: _kill_pipelines(victim), self._up.members[0])

    def _disconnect(self) -> None:
        one, other = self._one_of(self._down)
        one.ctl("disconnect_standby_replication_downstream")
        self.publish()
        other.ctl("connect_standby_replication_downstream")

    # -- promotion and return -----------------------------------------------------------------

    def _promote(self, number: int) -> None:
        """Promote, with up to three kills of nodes, of etcd, or of a recovery."""
        for _ in range(self._random.randrange(4)):
            asked = self._random.choice(self._down.members)
            promotion = threading.Thread(
                target=self._sites.promote, kwargs={"at": asked, "check": False}, daemon=True
            )
            promotion.start()
            self._sites.wait(
                lambda: (
                    self._sites.status()["promotion"] or self._sites.status()["operating_mode"] == "upstream"
                ),
                "the promotion to begin",
            )
            kind = self._random.choice(("node", "node", "etcd", "pipeline"))
            victim = self._random.choice(self._down.members)
            print(f"round {number}: in the promotion {kind} of {victim.node} is killed", flush=True)
            if kind == "node":
                self._kill(victim)
            elif kind == "etcd":
                self._kill_etcd(self._down)
            else:
                _kill_pipelines(victim)
            promotion.join()
            self._start(self._down)
        self._sites.promote(at=self._random.choice(self._down.members))

    def _return(self, number: int) -> None:
        """Bring the lost site back as a downstream; a node of it or its etcd may be killed on the way."""
        self._sites.bring_back()
        self._killed.clear()
        kind = self._random.choice(("nothing", "node", "etcd"))
        asked, victim = self._one_of(self._down)
        print(f"round {number}: the lost site returns, {kind} is killed", flush=True)
        rejoin = threading.Thread(
            target=self._sites.rejoin, kwargs={"at": asked, "check": False}, daemon=True
        )
        rejoin.start()
        if kind != "nothing":
            self._sites.wait(lambda: "rejoin" in asked.log_text(), "the return to begin")
        if kind == "node":
            self._kill(victim)
        elif kind == "etcd":
            self._kill_etcd(self._down)
        rejoin.join()
        self._start(self._down)
        for _ in range(5):
            if self._sites.status()["operating_mode"] == "downstream":
                break
            self._sites.rejoin(at=asked, check=False)
        self._sites.wait_following()
        self._check_set_aside()

    def _check_set_aside(self) -> None:
        """Check that the messages that only the returned site had are shown as they were published."""
        rows = [row for node in self._sites.downstreams for row in divergent(node)]
        shown = self._sites.books.check_rows(rows)
        print(f"{len(shown)} messages are set aside", flush=True)


def _kill_pipelines(node: SiteNode) -> None:
    """Kill a node's pipeline processes; their Spark ends with them."""
    for pid, _ in descendants(node.pid):
        with suppress(OSError):
            if b"leveret.pipeline" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
