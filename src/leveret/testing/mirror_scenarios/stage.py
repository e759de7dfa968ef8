"""The actions of a case of mirrored queues on a cluster, and the transcript of its observations.

Transcripts name the nodes A, B, C, ... in the cluster's order. They have only certain observations: a case waits for an
expected state, and notes it then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker

from leveret.testing.sites.mirror_cluster import PATIENCE_S, ClusterNode, MirrorCluster, QueuePlace

LETTERS: Final = "ABCDEFGH"


@dataclass(frozen=True)
class Case:
    """One case of a suite.

    Attributes:
        play: carries the case out.
        nodes: the number of nodes that it needs.
        alone: whether no other case can use its cluster afterwards.
        config: lines of its nodes' configuration, if they are not the usual ones.
        shown: whether RabbitMQ 3.10.8 behaves as the suite of 3.13 expects.
    """

    play: Callable[[Stage], None]
    nodes: int = 3
    alone: bool = False
    config: tuple[tuple[str, str], ...] = ()
    shown: bool = True

    @property
    def name(self) -> str:
        """RabbitMQ's names of the suite and the case."""
        suite = self.play.__module__.rpartition(".")[2]
        return f"{suite}.{self.play.__name__}"


class Stage:
    """See the module.

    Attributes:
        cluster: the cluster of the case.
        nodes: all nodes of the cluster.
        folder: the folder for files of the case.
        lines: the transcript.
    """

    def __init__(self, cluster: MirrorCluster, folder: Path) -> None:
        self.cluster = cluster
        self.nodes = list(cluster.nodes)
        self.folder = folder
        self.lines: list[str] = []

    # -- the transcript -----------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Note an observation; names of nodes become letters."""
        for node in self.nodes:
            text = text.replace(node.node, self.letter(node))
        self.lines.append(text)

    def letter(self, node: ClusterNode | str) -> str:
        """Return a node's name in the transcript."""
        names = [each.node for each in self.nodes]
        return LETTERS[names.index(node if isinstance(node, str) else node.node)]

    def node(self, name: str) -> ClusterNode:
        """Return the node with this name."""
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
        """Set the policy `name` at a node; `_` in the names of more keys stands for `-`."""
        definition: dict[str, Any] = {"ha-mode": mode}
        definition |= {key.replace("_", "-"): value for key, value in more.items()}
        if params is not None:
            definition["ha-params"] = params if isinstance(params, int) else [each.node for each in params]
        self.cluster.set_policy(name, pattern, definition, at=at)

    def unmirror(self, name: str = "ha", *, at: ClusterNode | None = None) -> None:
        """Remove a policy."""
        self.cluster.clear_policy(name, at=at)

    # -- queues -------------------------------------------------------------------------------

    def declare(self, node: ClusterNode, queue: str, *, durable: bool = True, **arguments: Any) -> int:
        """Declare a queue; return its number of messages. `_` in names of arguments stands for `-`.

        Raises:
            ChannelClosedByBroker: the node refuses the declare.
        """
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        with self.cluster.channel(node, confirms=False) as channel:
            declared = channel.queue_declare(queue, durable=durable, arguments=named)
            return int(declared.method.message_count)

    def declares(self, node: ClusterNode, queue: str, *wanted: int, **arguments: Any) -> None:
        """Declare until the answer is one of these numbers of messages; note it."""
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
        """Declare queues that are down, all at the same time; note that the answer is "no such queue", in any words.

        RabbitMQ takes a minute for the answer if all mirrors of a queue were lost with its leader.
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
        """Delete a queue; note whether that succeeded."""
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
        """Publish numbered persistent messages, padded to a size; return when the last is confirmed, and so all are."""
        properties = pika.BasicProperties(delivery_mode=2, priority=priority)
        with self.cluster.channel(node, confirms=False) as channel:
            for number in range(first, first + count):
                if number == first + count - 1:
                    channel.confirm_delivery()
                channel.basic_publish("", queue, (b"%d" % number).ljust(size), properties)

    def takes(self, node: ClusterNode, queue: str, *, delivered: Sequence[int] = ()) -> None:
        """Take all messages, and note their numbers, and which of the messages `delivered` before are redelivered.

        The mark of other messages is not noted, because RabbitMQ marks all of them after a fail-over.
        """
        numbers: list[int] = []
        marked: list[int] = []
        with self.cluster.channel(node, confirms=False) as channel:
            while count := channel.queue_declare(queue, passive=True).method.message_count:
                for method, _, body in islice(channel.consume(queue, inactivity_timeout=PATIENCE_S), count):
                    assert method is not None, f"{queue} has {count} messages, and not all came"
                    numbers.append(int(body))
                    if method.redelivered:
                        marked.append(numbers[-1])
                channel.basic_ack(method.delivery_tag, multiple=True)
                channel.cancel()
        line = f"{self.letter(node)} takes from {queue}: {spans(numbers)}"
        if delivered:
            line += f"; redelivered {spans([number for number in marked if number in delivered])}"
        self.say(line)

    @contextmanager
    def holding(self, node: ClusterNode, queue: str, count: int) -> Iterator[tuple[Any, list[int]]]:
        """Get `count` messages without acking them; yield the channel and their tags."""
        with self.cluster.channel(node, confirms=False) as channel:
            tags = []
            for _ in range(count):
                method, _, _ = channel.basic_get(queue)
                assert method is not None, f"{queue} is empty"
                tags.append(method.delivery_tag)
            yield channel, tags

    def settled(self, channel: Any) -> None:
        """Wait until the node has read all methods of a channel: an ack has no answer of its own."""
        channel.basic_qos(prefetch_count=0)

    # -- placement of queues ------------------------------------------------------------------

    def placed(
        self,
        queue: str,
        leader: ClusterNode | Sequence[ClusterNode],
        mirrors: Sequence[ClusterNode] | None,
        synchronised: Sequence[ClusterNode] | None = None,
        *,
        asked: ClusterNode | None = None,
    ) -> QueuePlace:
        """Wait until a queue has this leader and mirrors; note it. `synchronised` is ignored if it is None."""
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
        """Wait until `count` mirrors are synchronised; note it."""
        self.cluster.wait_synchronised(queue, count)
        self.say(f"{queue}: {count} synchronised")

    def queues(self, asked: ClusterNode, wanted: Sequence[str]) -> None:
        """Wait until a node lists exactly these queues; note it."""

        def known() -> bool:
            return sorted(self.cluster.queues(asked)) == sorted(wanted)

        self.cluster.wait(known, f"queues {list(wanted)} at {asked.node}")
        self.say(f"{self.letter(asked)} has {', '.join(sorted(wanted)) or 'no queues'}")

    # -- nodes --------------------------------------------------------------------------------

    def stop(self, *nodes: ClusterNode) -> None:
        """Stop nodes in order; return when the others know it."""
        for each in nodes:
            each.stop()
        self._gone("stop", nodes)

    def kill(self, *nodes: ClusterNode) -> None:
        """Kill nodes with kill -9; return when the others know it."""
        for each in nodes:
            each.kill9()
        self._gone("kill", nodes)

    def start(self, *nodes: ClusterNode) -> None:
        """Start nodes that are down."""
        self.cluster.start(*nodes)
        self.say(f"start {self._letters(nodes)}")

    def restart(self, node: ClusterNode) -> None:
        """Stop a node in order, and start it."""
        self.cluster.restart(node)
        self.say(f"restart {self.letter(node)}")

    def _gone(self, how: str, nodes: Sequence[ClusterNode]) -> None:
        if self.cluster.running:
            self.cluster.wait_members()
        self.say(f"{how} {self._letters(nodes)}")

    # -- between cases ------------------------------------------------------------------------

    def clear(self) -> None:
        """Start stopped nodes, and remove the queues and policies of earlier cases."""
        down = [each for each in self.nodes if not each.alive]
        if down:
            self.cluster.start(*down)

        def cleared() -> bool:
            # On a busy machine a newly started node may lose its lease once more.
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
    """Return numbers as text in the order in which they came, with runs joined: `3-9, 0`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "nothing"


def transcripts(text: str) -> dict[str, list[str]]:
    """Parse the output of `render`: the transcripts by the names of their cases."""
    found: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        name, *lines = block.strip().splitlines() or [""]
        if name:
            found[name] = [line.strip() for line in lines]
    return found


def render(found: Mapping[str, Sequence[str]]) -> str:
    """Return transcripts as text: each name, and its lines indented."""
    blocks = ["\n".join([name, *(f"    {line}" for line in lines)]) for name, lines in sorted(found.items())]
    return "\n\n".join(blocks) + "\n"
