"""What a case of mirrored queues may do with a cluster, and the transcript of what was seen.

In transcripts nodes are called A, B, C, ... in the order in which the cluster has them. Only what is certain is noted:
a case waits for what must come to be so, and says then that it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker

from leveret.testing.sites.mirror_cluster import ClusterNode, MirrorCluster, QueuePlace

LETTERS: Final = "ABCDEFGH"
_PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)


@dataclass(frozen=True)
class Case:
    """One case of a suite.

    Attributes:
        play: acts it out.
        nodes: how many nodes it wants.
        alone: whether it leaves a cluster that no other case can use.
        config: lines of the configuration of its nodes, where these are not the usual ones.
        shown: whether RabbitMQ 3.10.8 does what the suite of 3.13 says.
    """

    play: Callable[[Stage], None]
    nodes: int = 3
    alone: bool = False
    config: tuple[tuple[str, str], ...] = ()
    shown: bool = True

    @property
    def name(self) -> str:
        """Suite and case, as RabbitMQ calls them."""
        suite = self.play.__module__.rpartition(".")[2]
        return f"{suite}.{self.play.__name__}"


class Stage:
    """See the module.

    Attributes:
        cluster: where it plays.
        nodes: all nodes of it.
        folder: for files of the case.
        lines: the transcript.
    """

    def __init__(self, cluster: MirrorCluster, folder: Path) -> None:
        self.cluster = cluster
        self.nodes = list(cluster.nodes)
        self.folder = folder
        self.lines: list[str] = []

    # -- the transcript -----------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Note what was seen; names of nodes become letters."""
        for node in self.nodes:
            text = text.replace(node.node, self.letter(node))
        self.lines.append(text)

    def letter(self, node: ClusterNode | str) -> str:
        """What a node is called in the transcript."""
        names = [each.node for each in self.nodes]
        return LETTERS[names.index(node if isinstance(node, str) else node.node)]

    def node(self, name: str) -> ClusterNode:
        """The node with this name."""
        return next(each for each in self.nodes if each.node == name)

    def _letters(self, nodes: Sequence[ClusterNode | str]) -> str:
        return " ".join(sorted(self.letter(each) for each in nodes)) or "none"

    # -- policies -----------------------------------------------------------------------------

    def mirror(
        self,
        pattern: str,
        mode: str,
        params: int | Sequence[ClusterNode] | None = None,
        *,
        name: str = "ha",
        at: ClusterNode | None = None,
        **more: str,
    ) -> None:
        """Set the policy `name`, at a node; `_` in names of more keys stands for `-`."""
        definition: dict[str, Any] = {"ha-mode": mode}
        definition |= {key.replace("_", "-"): value for key, value in more.items()}
        if params is not None:
            definition["ha-params"] = params if isinstance(params, int) else [each.node for each in params]
        self.cluster.set_policy(name, pattern, definition, at=at)

    def unmirror(self, name: str = "ha", *, at: ClusterNode | None = None) -> None:
        """Take a policy away."""
        self.cluster.clear_policy(name, at=at)

    # -- queues -------------------------------------------------------------------------------

    def declare(self, node: ClusterNode, queue: str, *, durable: bool = True, **arguments: Any) -> int:
        """Declare a queue; returns its messages. `_` in names of arguments stands for `-`.

        Raises:
            ChannelClosedByBroker: it may not be.
        """
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        with self.cluster.channel(node, confirms=False) as channel:
            declared = channel.queue_declare(queue, durable=durable, arguments=named)
            return int(declared.method.message_count)

    def declares(self, node: ClusterNode, queue: str, *wanted: int, **arguments: Any) -> None:
        """Declare until the answer is so many messages, or one of so many; say it."""
        answers: list[int] = []

        def answered() -> bool:
            try:
                answers.append(self.declare(node, queue, **arguments))
            except ChannelClosedByBroker:
                return False
            return answers[-1] in wanted

        self.cluster.wait(answered, f"{queue} declared at {node.node}: {wanted}")
        self.say(f"{self.letter(node)} declares {queue}: {answers[-1]} messages")

    def lacks(self, node: ClusterNode, *queues: str) -> None:
        """Declare queues that are down: there is no such queue, whatever the words; say it.

        RabbitMQ takes a minute for the answer if all its mirrors went with a leader; at once, for all of them.
        """

        def refusal(queue: str) -> int:
            try:
                return -self.declare(node, queue)
            except ChannelClosedByBroker as refused:
                return int(refused.reply_code)

        with ThreadPoolExecutor(len(queues)) as pool:
            for queue, code in zip(queues, pool.map(refusal, queues), strict=True):
                self.say(f"{self.letter(node)} declares {queue}: {code}")

    def delete(self, node: ClusterNode, queue: str, *, if_empty: bool = False) -> None:
        """Delete a queue; say whether it was."""
        try:
            with self.cluster.channel(node, confirms=False) as channel:
                channel.queue_delete(queue, if_empty=if_empty)
            answer = "done"
        except ChannelClosedByBroker as refused:
            answer = f"{refused.reply_code} {refused.reply_text}"
        asked = " if empty" if if_empty else ""
        self.say(f"{self.letter(node)} deletes {queue}{asked}: {answer}")

    def publish(
        self,
        node: ClusterNode,
        queue: str,
        count: int,
        *,
        first: int = 0,
        priority: int | None = None,
        size: int = 0,
    ) -> None:
        """Publish numbered persistent messages, filled up to a size, all of them confirmed at the end."""
        properties = pika.BasicProperties(delivery_mode=2, priority=priority)
        with self.cluster.channel(node) as channel:
            for number in range(first, first + count):
                channel.basic_publish("", queue, (b"%d" % number).ljust(size), properties)

    def takes(self, node: ClusterNode, queue: str, *, delivered: Sequence[int] = ()) -> None:
        """Take all messages away, and say which came; of those that were delivered before, which were marked so.

        Of others it is not said: after a fail-over RabbitMQ marks them all.
        """
        numbers: list[int] = []
        marked: list[int] = []
        with self.cluster.channel(node, confirms=False) as channel:
            while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
                numbers.append(int(message[2]))
                if message[0].redelivered:
                    marked.append(numbers[-1])
        reported = f"{self.letter(node)} takes from {queue}: {spans(numbers)}"
        if delivered:
            reported += f"; redelivered {spans([number for number in marked if number in delivered])}"
        self.say(reported)

    @contextmanager
    def holding(self, node: ClusterNode, queue: str, count: int) -> Iterator[tuple[Any, list[int]]]:
        """Get so many messages without acking them; a channel and the tags, for what is done with them."""
        with self.cluster.channel(node, confirms=False) as channel:
            tags = []
            for _ in range(count):
                method, _, _ = channel.basic_get(queue)
                assert method is not None, f"{queue} is empty"
                tags.append(method.delivery_tag)
            yield channel, tags

    def settled(self, channel: Any) -> None:
        """Return when the node has read what was sent on a channel: an ack has no answer of its own."""
        channel.basic_qos(prefetch_count=0)

    # -- where queues are ---------------------------------------------------------------------

    def placed(
        self,
        queue: str,
        leader: ClusterNode | Sequence[ClusterNode],
        mirrors: Sequence[ClusterNode] | None,
        synchronised: Sequence[ClusterNode] | None = None,
        *,
        asked: ClusterNode | None = None,
    ) -> QueuePlace:
        """Wait until a queue is there; say it. `synchronised` is not looked at if not given."""
        found = self.cluster.wait_placed(
            queue, leader, mirrors=mirrors, synchronised=synchronised, asked=asked
        )
        where = "not mirrored" if mirrors is None else f"mirrors {self._letters(mirrors)}"
        in_sync = "" if synchronised is None else f", synchronised {self._letters(synchronised)}"
        led = (
            self.letter(found.leader)
            if not isinstance(leader, Sequence)
            else f"one of {self._letters(leader)}"
        )
        self.say(f"{queue}: led by {led}, {where}{in_sync}")
        return found

    def synchronised(self, queue: str, count: int) -> None:
        """Wait until so many mirrors are synchronised; say it."""
        self.cluster.wait_synchronised(queue, count)
        self.say(f"{queue}: {count} synchronised")

    def queues(self, asked: ClusterNode, wanted: Sequence[str]) -> None:
        """Wait until a node knows just these queues; say it."""

        def known() -> bool:
            return sorted(self.cluster.queues(asked)) == sorted(wanted)

        self.cluster.wait(known, f"queues {list(wanted)} at {asked.node}")
        self.say(f"{self.letter(asked)} has {', '.join(sorted(wanted)) or 'no queues'}")

    # -- nodes --------------------------------------------------------------------------------

    def stop(self, *nodes: ClusterNode) -> None:
        """End nodes in order; the others know it when this returns."""
        for each in nodes:
            each.stop()
        self._gone("stop", nodes)

    def kill(self, *nodes: ClusterNode) -> None:
        """End nodes by kill -9; the others know it when this returns."""
        for each in nodes:
            each.kill9()
        self._gone("kill", nodes)

    def start(self, *nodes: ClusterNode) -> None:
        """Start nodes that are down."""
        self.cluster.start(*nodes)
        self.say(f"start {self._letters(nodes)}")

    def restart(self, node: ClusterNode) -> None:
        """End a node in order and start it."""
        self.cluster.restart(node)
        self.say(f"restart {self.letter(node)}")

    def _gone(self, how: str, nodes: Sequence[ClusterNode]) -> None:
        if self.cluster.running:
            self.cluster.wait_members()
        self.say(f"{how} {self._letters(nodes)}")

    # -- in between ---------------------------------------------------------------------------

    def clear(self) -> None:
        """Start what is down and remove what cases leave, so that the next one finds nothing."""
        down = [each for each in self.nodes if not each.alive]
        if down:
            self.cluster.start(*down)

        def cleared() -> bool:
            # On a busy machine a node that was just started may lose its lease once more.
            with suppress(OSError, httpx.HTTPStatusError):
                for row in self.cluster.api("GET", "policies"):
                    self.cluster.clear_policy(row["name"], vhost=row["vhost"])
                return True
            return False

        def removed() -> bool:
            for name in self.cluster.queues(self.nodes[0]):
                with suppress(AMQPError, httpx.HTTPStatusError):
                    self.cluster.api("DELETE", f"queues/%2F/{quote(name, safe='')}")
            return not any(self.cluster.queues(each) for each in self.nodes)

        self.cluster.wait(cleared, "no policies")
        self.cluster.wait(removed, "no queues")


def spans(numbers: Sequence[int]) -> str:
    """Write numbers in the order in which they came, runs put together: `3-9, 0`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "nothing"


def transcripts(text: str) -> dict[str, list[str]]:
    """Read transcripts that were written by `render`, by the names of their cases."""
    found: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        name, *lines = block.strip().splitlines() or [""]
        if name:
            found[name] = [line.strip() for line in lines]
    return found


def render(found: Mapping[str, Sequence[str]]) -> str:
    """Write transcripts: a name, and its lines indented."""
    blocks = ["\n".join([name, *(f"    {line}" for line in lines)]) for name, lines in sorted(found.items())]
    return "\n\n".join(blocks) + "\n"
