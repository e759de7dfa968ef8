"""Rounds in the life of a cluster: what may happen to it while applications work at all of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from pika.exceptions import ChannelClosedByBroker

from leveret.testing.applications.audit import Audit
from leveret.testing.sites.cluster_site import SiteNode
from leveret.testing.sites.mirror_cluster import QueuePlace
from tests.cluster.torture_lossy import LOSSY
from tests.cluster.torture_stage import KEPT, LEASE_S, LONELY, QUEUES, Stage
from tests.cluster.torture_stream import STREAM

DELAYS_S: Final = (0.0, 0.02, 0.1)
MADE: Final = "made"
MADE_MAX: Final = 3


class Story(Stage):
    """See the module."""

    def round(self, events: Sequence[str]) -> Audit:
        """Work while these things happen; then all must be in order."""
        self.happened = []
        consumers = self._chance.choice([0, 1, 2, 2])
        self._crew.hire(
            # One publisher a queue: order is kept for each of them.
            *(self._publisher(queue) for queue in QUEUES),
            *(self._consumer() for _ in range(consumers)),
        )
        self._consumed = self._consumed or consumers > 0
        self._streaming.begin()
        self._wait_working()
        for event in events:
            self._pause(0.2, 1.2)
            self.counts[event] += 1
            self.happened.append(event)
            EVENTS[event](self)
            self.tend()
        self._pause(0.2, 1.0)
        self.site.heal()
        self.site.start_all()
        self.outposts.heal()
        self.outposts.start()
        self._wait_working()
        self._wait_synchronised()
        disordered = self._crew.end()
        self._streaming.end()
        result = self._judge()
        assert disordered == 0, f"{self.happened}: {disordered} messages came out of order"
        return result

    # -- what happens -------------------------------------------------------------------------

    def _leader(self, queue: str = "") -> SiteNode:
        """Who leads this queue, or any of the mirrored ones, as a node says that answers."""
        queue, found = queue or self._chance.choice((*KEPT, STREAM)), ""

        def led() -> bool:
            nonlocal found
            placed = self.site.queues(self._someone()).get(queue)
            found = placed.leader if placed is not None and placed.state == "running" else ""
            return any(each.node == found and each.alive for each in self.site.members)

        self._wait(led, f"a leader of {queue}")
        return next(each for each in self.site.members if each.node == found)

    def _back(self, *nodes: SiteNode) -> None:
        """Start nodes again, and wait until they are members."""
        for each in nodes:
            each.launch()
        for each in nodes:
            each.wait_ready()

    def kill_leader(self) -> None:
        """Kill -9 of who leads a queue, and back after a while."""
        leader = self._leader()
        leader.kill9()
        self._pause(0.0, 2.0 * LEASE_S)
        self.tend()
        self._pause(0.0, 1.0)
        self._back(leader)

    def kill_someone(self) -> None:
        """Kill -9 of any node, and back at once: its lease may not have ended."""
        node = self._someone()
        node.kill9()
        self._back(node)

    def kill_two(self) -> None:
        """Kill -9 of two nodes, one after the other, the leader first."""
        first = self._leader()
        first.kill9()
        self._pause(0.0, 1.5 * LEASE_S)
        second = self._someone()
        second.kill9()
        self._pause(0.0, 1.0)
        self._back(*self._chance.sample([first, second], 2))

    def kill_all(self) -> None:
        """Kill -9 of everybody; all come back, in any order."""
        for each in self._chance.sample(self.site.members, len(self.site.members)):
            each.kill9()
        self._back(*self._chance.sample(self.site.members, len(self.site.members)))

    def stop_leader(self) -> None:
        """End who leads a queue in order: it hands over; back after a while."""
        leader = self._leader()
        leader.stop()
        self._pause(0.0, 1.0)
        self.tend()
        self._back(leader)

    def rolling_restart(self) -> None:
        """An upgrade: each node is stopped and started, and nothing is waited for but what an operator waits for."""
        order = [*self.site.members]
        if self._chance.random() < 0.5:
            self._chance.shuffle(order)
        for each in order:
            # Its policy synchronises nothing by itself: the operator does, or the wait would have no end.
            # A queue that has all its mirrors, or none, refuses.
            each.ctl("sync_queue", LOSSY, check=False)
            for wait in ("await_online_synchronized_mirror", "await_online_quorum_plus_one"):
                self._wait(partial(self._succeeds, each, wait), f"{wait} at {each.node}")
            each.stop()
            self._back(each)
            self.tend()

    @staticmethod
    def _succeeds(node: SiteNode, command: str) -> bool:
        return node.ctl(command, check=False).returncode == 0

    def promote_unsynchronised(self) -> None:
        """The mirror of a queue lacks what was there before it; then the leader ends, in one way or another."""
        places: list[QueuePlace] = []

        def mirrored() -> bool:
            placed = self.site.queues(self._someone())[LOSSY]
            places[:] = [placed]
            # A second one is there for a moment while it replaces the first.
            return placed.state == "running" and len(placed.mirrors or ()) == 1

        self._wait(mirrored, f"a mirror of {LOSSY}")
        [mirror] = [each for each in self.site.members if each.node in (places[0].mirrors or ())]
        mirror.kill9()
        self._pause(0.0, 1.0)
        self._back(mirror)
        self._wait(mirrored, f"a mirror of {LOSSY} again")
        self._pause(0.0, 1.0)
        leader = self._leader(LOSSY)
        end = self._chance.choice(["kill", "stop", "freeze"])
        if end == "freeze":
            with self.site.paused(leader):
                self._pause(1.5 * LEASE_S, 3.0 * LEASE_S)
            return
        if end == "kill":
            leader.kill9()
        else:
            leader.stop()
        self._pause(0.0, 2.0 * LEASE_S)
        self.tend()
        self._back(leader)

    def drain_queue(self) -> None:
        """A queue is filled, and drained, but for a message that nobody acks in one of them."""
        self._quiet.use(self._done)

    def freeze_shortly(self) -> None:
        """A node stands still for less than its lease."""
        with self.site.paused(self._someone()):
            self._pause(0.1, 0.4 * LEASE_S)

    def freeze_long(self) -> None:
        """A node stands still for longer: it must know, when it goes on, that it leads no more."""
        with self.site.paused(self._leader()):
            self._pause(1.5 * LEASE_S, 3.0 * LEASE_S)

    def cut_off(self) -> None:
        """A partition: nothing passes between a node and etcd, and nothing to it."""
        with self.site.cut_off(self._chance.choice([self._leader(), self._someone()])):
            self._pause(0.2, 3.0 * LEASE_S)

    def cut_etcd(self) -> None:
        """A node does not reach etcd, and is reached by all others."""
        link = self._someone().etcd_link
        assert link is not None
        link.refuse()
        self._pause(0.2, 3.0 * LEASE_S)
        link.allow()

    def cut_link(self) -> None:
        """Who is connected to a node is cut off, once or more, politely or not."""
        link = self._someone().link
        assert link is not None
        for _ in range(self._chance.randint(1, 4)):
            link.cut(abruptly=self._chance.random() < 0.5)
            self._pause(0.05, 0.7)

    def stall_link(self) -> None:
        """Nothing gets to a node, and nobody is told."""
        link = self._someone().link
        assert link is not None
        link.stall()
        self._pause(0.1, 2.0 * LEASE_S)
        link.resume()

    def slow_link(self) -> None:
        """Little gets to a node, late."""
        link = self._someone().link
        assert link is not None
        link.limit_bytes_s = self._chance.choice([50_000, 200_000, 500_000])
        link.delay_s = self._chance.choice(DELAYS_S)
        self._pause(0.5, 2.5)
        link.limit_bytes_s, link.delay_s = None, 0.0

    def restart_etcd(self) -> None:
        """Etcd is killed, and back before or after the leases would have ended."""
        member = self._chance.choice(self.site.etcd.members)
        member.kill9()
        self._pause(0.0, 2.0 * LEASE_S)
        member.restart()

    def replace_node(self) -> None:
        """A node is lost with its disk and forgotten; one without anything joins in its place."""
        node = self._someone()
        other = next(each for each in self._awake() if each is not node)
        self._wait_synchronised()
        led = {name for name, placed in self.site.queues(other).items() if placed.leader == node.node}
        if LONELY in led or (node.data_dir / "queues" / self._lossy_log).exists():
            # Nobody else has what it has.
            return
        self._quarantined.collect(node)
        node.kill9()
        self.site.wait_members()
        assert self.site.forget(node, at=other), f"{other.node} does not forget {node.node}"
        # What had no mirror went with its node.
        self._made -= led
        node.wipe()
        self.site.give_secret(node)
        self.outposts.replaced(node)
        self._back(node)
        self.outposts.start()

    def change_policy(self) -> None:
        """Mirrors go elsewhere, or become fewer or more."""
        mode = self._chance.choice(["all", "all", "exactly", "nodes"])
        count = self._chance.randint(2, len(self.site.members))
        if mode == "exactly":
            self._mirror(mode, count)
        elif mode == "nodes":
            self._mirror(mode, [each.node for each in self._chance.sample(self.site.members, count)])
        else:
            self._mirror(mode, None)

    def rebalance(self) -> None:
        """Leaders are spread."""
        self._done(lambda node: self.site.api("POST", "rebalance/queues", {}, at=node), "a rebalance")

    def move_stream(self) -> None:
        """A stream is led by another replica."""
        self._done(
            lambda node: node.ctl("restart_stream", STREAM, check=False), "another leader of the stream"
        )

    def kill_follower(self) -> None:
        """Kill -9 of a follower beyond the cluster, and back after a while."""
        self._chance.choice(self.outposts.every).kill9()
        self._pause(0.0, 1.5 * LEASE_S)
        self.outposts.start()

    def cut_follower(self) -> None:
        """Nothing passes between a follower beyond the cluster and its node, or the connection is cut."""
        link = self._chance.choice(self.outposts.every).node.link
        if self._chance.random() < 0.5:
            link.cut(abruptly=self._chance.random() < 0.5)
            return
        link.stall()
        self._pause(0.1, 1.5 * LEASE_S)
        link.resume()

    def define(self) -> None:
        """Declare queues at any node, delete some at another: what was answered is so, wherever one asks."""
        for _ in range(self._chance.randint(1, MADE_MAX)):
            self._made_so_far += 1
            name = f"{MADE}-{self._made_so_far}"
            self._done(partial(self._declare, name), f"a declare of {name}")
            self._made.add(name)
            self._done(partial(self._see, name), f"a look at {name}")
            if len(self._made) > MADE_MAX:
                gone = self._chance.choice(sorted(self._made))
                self._done(partial(self._delete, gone), f"a delete of {gone}")
                self._made.remove(gone)

    def _declare(self, name: str, node: SiteNode) -> None:
        with self.site.channel(node) as channel:
            channel.queue_declare(name, durable=True)

    def _see(self, name: str, node: SiteNode) -> None:
        with self.site.channel(node) as channel:
            try:
                channel.queue_declare(name, passive=True)
            except ChannelClosedByBroker as error:
                if "no queue" in error.reply_text:
                    raise AssertionError(f"{node.node}: {error}, and it was declared") from None
                raise


EVENTS: Final[dict[str, Callable[[Story], None]]] = {
    each.__name__: each
    for each in (
        Story.kill_leader,
        Story.kill_someone,
        Story.kill_two,
        Story.kill_all,
        Story.stop_leader,
        Story.rolling_restart,
        Story.promote_unsynchronised,
        Story.drain_queue,
        Story.freeze_shortly,
        Story.freeze_long,
        Story.cut_off,
        Story.cut_etcd,
        Story.cut_link,
        Story.stall_link,
        Story.slow_link,
        Story.restart_etcd,
        Story.replace_node,
        Story.change_policy,
        Story.rebalance,
        Story.move_stream,
        Story.kill_follower,
        Story.cut_follower,
        Story.define,
    )
}
