"""A cluster with mirrored queues, RabbitMQ's or Leveret's, as scenarios, tests and benchmarks operate it.

    with RabbitCluster() as cluster:                   # or ClusterSite(folder)
        a, b, c = cluster.nodes
        cluster.set_policy("ha", "^q", {"ha-mode": "all"})
        with cluster.channel(a) as channel:
            channel.queue_declare("q", durable=True)
        cluster.wait_placed("q", a, mirrors=[b, c], synchronised=[b, c])
        a.kill9()

Both have RabbitMQ's HTTP API, so this class has the operator's requests for both. Only the report of the queues'
places differs between them. A wait that fails has the reports and logs of all nodes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self
from urllib.parse import quote

import httpx
import pika
from pika.exceptions import AMQPError

from leveret.testing.applications.applications import channel_of
from leveret.testing.network.ports import LOOPBACK, NotReady, wait_until

PATIENCE_S: Final = 60.0
REQUEST_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """The place of a queue, as one node reports it.

    Attributes:
        leader: the node of the present or last leader.
        mirrors: the nodes with a mirror; None for a queue without mirrors.
        synchronised: the nodes whose mirror has all the leader's records.
        state: `running`, `syncing`, `down`, ...
        messages: the number of ready and delivered messages; None if it is unknown.
        policy: the name of its policy, or "".
    """

    leader: str
    mirrors: tuple[str, ...] | None
    synchronised: tuple[str, ...]
    state: str
    messages: int | None
    policy: str = ""


class ClusterNode(Protocol):
    """One node's process."""

    @property
    def amqp_port(self) -> int:
        """The port of its AMQP listener."""

    @property
    def management_port(self) -> int:
        """The port of its HTTP API."""

    @property
    def node(self) -> str:
        """Its name in the cluster."""

    @property
    def alive(self) -> bool:
        """Whether the process runs."""

    def launch(self) -> None:
        """Start the node on its existing data, without waiting."""

    def wait_ready(self) -> None:
        """Wait until every listener of a launched node answers."""

    def stop(self) -> int:
        """End the node in order; return its exit status."""

    def kill9(self) -> None:
        """End the node as a crash would."""

    def ctl(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run rabbitmqctl or leveretctl against the node."""

    def log_tail(self) -> str:
        """Return the end of its log, for an error."""


class MirrorCluster:
    """See the module.

    Attributes:
        kind: `rabbitmq` or `leveret`.
        begins_empty: whether the mirrors of a node are empty after its restart.
    """

    kind: str
    begins_empty: bool

    @property
    def nodes(self) -> Sequence[ClusterNode]:
        """All nodes, running or not."""
        raise NotImplementedError

    def form(self) -> None:
        """Start all nodes; return when they are a cluster."""
        raise NotImplementedError

    def close(self) -> None:
        """End all processes."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.form()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None and not isinstance(value, NotReady):
            value.add_note(self.evidence())
        self.close()

    def queues(self, asked: ClusterNode, vhost: str = "/") -> Mapping[str, QueuePlace]:
        """Return all queues of a vhost, by name, as one node reports them.

        Raises:
            OSError: the node does not answer.
        """
        raise NotImplementedError

    # -- operating ----------------------------------------------------------------------------

    @property
    def running(self) -> list[ClusterNode]:
        """The nodes whose process runs."""
        return [each for each in self.nodes if each.alive]

    def api(self, method: str, path: str, document: Any = None, *, at: ClusterNode | None = None) -> Any:
        """Send a request to the HTTP API below `/api/`; return the document, or None for an empty answer.

        Raises:
            OSError: the node does not answer.
            httpx.HTTPStatusError: the node refused the request; a note has the answer.
        """
        node = at or self.running[0]
        url = f"http://{LOOPBACK}:{node.management_port}/api/{path}"
        try:
            answer = httpx.request(
                method,
                url,
                json=document,
                auth=("guest", "guest"),
                trust_env=False,
                verify=False,
                timeout=REQUEST_TIMEOUT_S,
            )
        except httpx.TransportError as error:
            raise OSError(f"{node.node}: {method} {path}: {error}") from error
        try:
            answer.raise_for_status()
        except httpx.HTTPStatusError as refused:
            refused.add_note(f"{node.node}: {answer.text}")
            raise
        return answer.json() if answer.content else None

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        *,
        priority: int = 0,
        vhost: str = "/",
        at: ClusterNode | None = None,
    ) -> None:
        """Set a policy for queues."""
        document = {
            "pattern": pattern,
            "definition": dict(definition),
            "priority": priority,
            "apply-to": "queues",
        }
        self.api("PUT", f"policies/{quote(vhost, safe='')}/{quote(name, safe='')}", document, at=at)

    def clear_policy(self, name: str, *, vhost: str = "/", at: ClusterNode | None = None) -> None:
        """Delete a policy if it exists."""
        try:
            self.api("DELETE", f"policies/{quote(vhost, safe='')}/{quote(name, safe='')}", at=at)
        except httpx.HTTPStatusError as refused:
            if refused.response.status_code != httpx.codes.NOT_FOUND:
                raise

    def act(self, queue: str, action: str, *, at: ClusterNode | None = None) -> None:
        """Start (`sync`) or cancel (`cancel_sync`) the synchronisation of a queue's mirrors."""
        self.api("POST", f"queues/%2F/{quote(queue, safe='')}/actions", {"action": action}, at=at)

    def connect(self, node: ClusterNode, vhost: str = "/", **options: Any) -> pika.BlockingConnection:
        """Return a connection of guest to one node, without heartbeats."""
        settings: dict[str, Any] = {"heartbeat": 0, "socket_timeout": REQUEST_TIMEOUT_S} | options
        return pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port, vhost, **settings))

    def channel(
        self, node: ClusterNode, vhost: str = "/", *, confirms: bool = True
    ) -> AbstractContextManager[Any]:
        """Return a channel with a connection of its own to one node, for a block in which the node may die."""
        return channel_of(self.connect(node, vhost), confirms=confirms)

    def forget(self, lost: ClusterNode, *, at: ClusterNode) -> bool:
        """Have a running node forget another one; return whether the command succeeded."""
        return at.ctl("forget_cluster_node", lost.node, check=False).returncode == 0

    def revive_without(self, node: ClusterNode, *lost: ClusterNode) -> None:
        """Start one node while all nodes are down, and have it forget the lost ones."""
        raise NotImplementedError

    def start_alone(self, node: ClusterNode) -> None:
        """Start one node after all nodes went down, the last one by a crash."""
        raise NotImplementedError

    def drain(self, node: ClusterNode) -> None:
        """Put a node into maintenance mode: it accepts no clients and gets no queues."""
        raise NotImplementedError

    def revive(self, node: ClusterNode) -> None:
        """End the maintenance mode of a node."""
        raise NotImplementedError

    # -- processes ----------------------------------------------------------------------------

    def start(self, *nodes: ClusterNode) -> None:
        """Start nodes together, and wait until all nodes report them as running."""
        for each in nodes:
            each.launch()
        for each in nodes:
            each.wait_ready()
        self.wait_members()

    def restart(self, *nodes: ClusterNode) -> None:
        """Restart nodes in order, one after the other."""
        for each in nodes:
            each.stop()
            self.start(each)

    def members_running(self, asked: ClusterNode) -> set[str]:
        """Return the names of the running nodes, as one node reports them.

        Raises:
            OSError: the node does not answer.
        """
        return {each["name"] for each in self.api("GET", "nodes", at=asked) if each["running"]}

    def wait_members(self) -> None:
        """Wait until each running node reports exactly the running nodes as running."""
        names = {each.node for each in self.running}

        def known() -> bool:
            return all(self.members_running(each) == names for each in self.running)

        self.wait(known, f"each to know that {sorted(names)} run")

    # -- waiting ------------------------------------------------------------------------------

    def queue(self, name: str, *, asked: ClusterNode | None = None) -> QueuePlace | None:
        """Return the place of a queue of vhost `/`, as one node reports it; None if the queue does not exist."""
        return self.queues(asked or self.running[0]).get(name)

    def wait_placed(
        self,
        queue: str,
        leader: ClusterNode | Sequence[ClusterNode],
        *,
        mirrors: Sequence[ClusterNode] | None,
        synchronised: Sequence[ClusterNode] | None = None,
        asked: ClusterNode | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> QueuePlace:
        """Wait until a queue has one of these leaders, and exactly these mirrors; return its place.

        Args:
            queue: its name.
            leader: the node, or the nodes, that may lead it.
            mirrors: the nodes with a mirror; None for a queue without mirrors.
            synchronised: the nodes with a synchronised mirror; None accepts any.
            asked: the node that reports; the first running one by default.
            timeout_s: the longest wait.
        """
        leaders = {each.node for each in (leader if isinstance(leader, Sequence) else [leader])}
        wanted = None if mirrors is None else {each.node for each in mirrors}
        in_sync = None if synchronised is None else {each.node for each in synchronised}
        found: list[QueuePlace] = []

        def placed() -> bool:
            seen = self.queue(queue, asked=asked)
            found[:] = [] if seen is None else [seen]
            return (
                seen is not None
                and seen.leader in leaders
                and (None if seen.mirrors is None else set(seen.mirrors)) == wanted
                and (in_sync is None or set(seen.synchronised) == in_sync)
            )

        what = f"{queue}: led by {sorted(leaders)}, mirrored at {wanted}, synchronised {in_sync}"
        self.wait(placed, what, timeout_s)
        return found[0]

    def wait_synchronised(self, queue: str, count: int, *, timeout_s: float = PATIENCE_S) -> QueuePlace:
        """Wait until exactly `count` mirrors of a queue are synchronised; return its place."""
        found: list[QueuePlace] = []

        def synchronised() -> bool:
            seen = self.queue(queue)
            found[:] = [] if seen is None else [seen]
            return seen is not None and len(seen.synchronised) == count

        self.wait(synchronised, f"{queue}: {count} synchronised mirrors", timeout_s)
        return found[0]

    def wait_without_copies(self, node: ClusterNode) -> None:
        """Wait until a node that neither leads nor mirrors a queue has no copy of one.

        A mirror that is added again before its copy is gone continues the copy, and lacks only later messages.
        """
        raise NotImplementedError

    def wait_messages(self, queue: str, count: int, *, asked: ClusterNode | None = None) -> None:
        """Wait until a node reports `count` messages in a queue."""

        def there() -> bool:
            seen = self.queue(queue, asked=asked)
            return seen is not None and seen.messages == count

        self.wait(there, f"{queue}: {count} messages")

    def wait(self, holds: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until `holds` returns true; an error of a node counts as false.

        Raises:
            NotReady: it did not within `timeout_s`; the text has the reports of all nodes, and the ends of their logs.
        """

        def asked() -> bool:
            try:
                return holds()
            except (OSError, AMQPError, httpx.HTTPStatusError):
                return False

        try:
            wait_until(asked, what, timeout_s)
        except NotReady as late:
            raise NotReady(f"{late}\n{self.evidence()}") from None

    def evidence(self) -> str:
        """Return the reports of all nodes, and the ends of their logs, for an error."""
        return "\n".join(
            f"--- {each.node}: {self._report_of(each)}\n{each.log_tail()}" for each in self.nodes
        )

    def _report_of(self, node: ClusterNode) -> str:
        if not node.alive:
            return "down"
        try:
            return "; ".join(f"{name} {placed}" for name, placed in sorted(self.queues(node).items()))
        except (OSError, httpx.HTTPStatusError) as error:
            return f"no answer: {error}"
