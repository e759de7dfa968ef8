"""Links from this node to the others of its cluster: one for requests to each running node, and dialled ones.

    links, asked = MemberLinks(config.cluster, credentials), RequestLinks(answer)
    listener = ClusterListener(config.cluster, credentials, {"member": asked.accept, ...})
    links.know(state.alive)                                  # at the start, and at each change
    found = await links.ask("rabbit@b", "rows", {"of": "queues"})
    peer = await links.dial("rabbit@b", "mirror")
    peer.receiver = copies                                   # earlier messages were kept for the receiver

Each node sends requests over its own link, so two nodes have two links between them. A link that ends is dialled
again, with a growing delay, for as long as etcd lists the node as alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

import leveret
from leveret.config.sections.cluster import Cluster
from leveret.config.uris import CLUSTER_PORT, parse_node_uri
from leveret.core.replication.cluster import Presence
from leveret.model.errors import LeveretError
from leveret.runtime.cluster.membership.listener import NOBODY, TLS_PREFIX
from leveret.runtime.link.credentials import NodeCredentials
from leveret.runtime.link.dialling import Dialling
from leveret.runtime.link.heartbeat import LinkHeartbeat
from leveret.runtime.link.listening import HANDSHAKE_TIMEOUT_S
from leveret.runtime.link.peer import LinkPeer, Receiver
from leveret.runtime.link.questions import Questions, Unanswered
from leveret.runtime.sockets.backoff import QUICK_RETRY_S, RetryWaits
from leveret.runtime.sockets.tls import client_context
from leveret.session.link_handshake import FollowerHandshake, HandshakeMessage, Kind, ProvenFollower
from leveret.wire.link import LinkError, Type

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
LINK_WAIT_S: Final = 5.0
"""A request waits for a link that has been missing for less than this; later ones fail at once.

So an operator's request does not wait for each answer of a node that has been cut off for longer.
"""

Answer: TypeAlias = Callable[[str, str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""(requesting node, name of the request, its arguments) -> the answer; the requester gets the errors, too."""


class NoSuchNode(LeveretError):
    """A node does not run, as far as this node knows, or another node is at its address."""


class MemberLinks:
    """See the module. All calls come from one event loop."""

    def __init__(self, settings: Cluster, credentials: NodeCredentials) -> None:
        """Connect nowhere yet."""
        self._settings = settings
        self._credentials = credentials
        self._alive: dict[str, Presence] = {}
        self._dialled: dict[str, _MemberLink] = {}

    def know(self, alive: Mapping[str, Presence]) -> None:
        """Keep links to exactly these nodes, except this one and those without an address."""
        me = self._credentials.name
        self._alive = {name: presence for name, presence in alive.items() if name != me and presence.uri}
        for name, link in list(self._dialled.items()):
            presence = self._alive.get(name)
            if presence is None or (presence.run_id, presence.uri) != (
                link.presence.run_id,
                link.presence.uri,
            ):
                self._dialled.pop(name).stop()
        for name, presence in self._alive.items():
            if name not in self._dialled:
                self._dialled[name] = _MemberLink(self, name, presence)

    def connected(self) -> list[str]:
        """Return the nodes that have a link now."""
        return [name for name, link in self._dialled.items() if link.peer is not None]

    async def ask(self, node: str, what: str, about: dict[str, Any]) -> dict[str, Any]:
        """Return another node's answer.

        Raises:
            Unanswered: the node cannot answer, does not in time, or is gone.
        """
        link = self._dialled.get(node)
        if link is None:
            raise Unanswered(f"node {node} does not run")
        return await link.ask(what, about)

    async def dial(self, node: str, kind: Kind, *, vhost: str = "") -> LinkPeer:
        """Return a new link to a node; it delivers nothing until its `receiver` is set, which the caller does next.

        Raises:
            LeveretError: the node does not run, is not reached, or refuses this node.
        """
        presence = self._alive.get(node)
        if presence is None:
            raise NoSuchNode(f"node {node} does not run")
        return await self.dial_presence(node, presence, kind, vhost)

    async def dial_presence(self, node: str, presence: Presence, kind: Kind, vhost: str = "") -> LinkPeer:
        """See `dial`; connect to the node at the address in `presence`."""
        try:
            uri = parse_node_uri(presence.uri, CLUSTER_PORT)
        except ValueError:
            where = f"node {node} advertises the address {presence.uri!r}"
            raise NoSuchNode(f"{where}, which is not valid: see its cluster.advertised_uri") from None
        dialling = Dialling(_prove)
        peer = dialling.peer
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await dialling.connect(
                    uri, client_context(self._settings.tls, TLS_PREFIX) if uri.is_tls else None
                )
        except OSError as error:
            raise LinkError(f"node {node} at {uri} is not reached: {str(error) or 'no answer'}") from error
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                leader = await dialling.shake(self._credentials.dials(kind, peer.channel, vhost=vhost))
            if leader.name != node:
                raise NoSuchNode(
                    f"at {uri} is node {leader.name}, not {node}: see its cluster.advertised_uri"
                )
        except TimeoutError:
            peer.abort()
            raise LinkError(f"node {node} at {uri} does not answer") from None
        except OSError as error:
            raise LinkError(f"node {node} at {uri}: {error}") from error
        except BaseException:
            peer.close()
            raise
        LinkHeartbeat(peer)
        return peer

    def stop(self) -> None:
        """End all links for requests; dialled links belong to their diallers."""
        for link in self._dialled.values():
            link.stop()
        self._dialled, self._alive = {}, {}


class RequestLinks:
    """The links over which other nodes send requests to this one."""

    def __init__(self, answer: Answer) -> None:
        """Start without a link; `answer` answers requests."""
        self._answer = answer
        self._accepted: list[LinkPeer] = []

    def accept(self, peer: LinkPeer, caller: ProvenFollower) -> Receiver:
        """Answer another node's requests over this link; the listener's handler for `member`."""
        self._accepted = [link for link in self._accepted if not link.is_closed]
        self._accepted.append(peer)

        async def find(what: str, about: dict[str, Any]) -> dict[str, Any]:
            return await self._answer(caller.name, what, about)

        return _RequestLink(peer, Questions(find, f"node {caller.name}"))

    def stop(self) -> None:
        """End all links."""
        for peer in self._accepted:
            peer.close()
        self._accepted = []


class _MemberLink:
    """Keeps the link for requests to one node (link.peer.Receiver).

    Attributes:
        presence: the presence of the node, with its address.
        peer: None while the link is down.
    """

    def __init__(self, links: MemberLinks, name: str, presence: Presence) -> None:
        self.presence = presence
        self.peer: LinkPeer | None = None
        self._links = links
        self._name = name
        self._error = ""
        self._is_stopped = False
        self._missing_since_s = asyncio.get_running_loop().time()
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._sender = f"node {name} of version {presence.version}"
        self._questions = Questions(_nothing, self._sender)
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        waits, loop = RetryWaits(QUICK_RETRY_S), asyncio.get_running_loop()
        while True:
            try:
                await self._once()
            except Exception as error:
                # Any other error, too: without this loop the node would get no more requests.
                if not isinstance(error, LeveretError):
                    logger.exception("cluster_link_failed node=%s", self._name)
                self._note(str(error))
            await asyncio.sleep(waits.failed(loop.time()))

    async def _once(self) -> None:
        peer = await self._links.dial_presence(self._name, self.presence, "member")
        self._ended.clear()
        peer.receiver = self
        if peer.is_closed:
            return
        self.peer = peer
        if self._error:
            logger.info("cluster_link_back node=%s", self._name)
        self._error = ""
        self._changed.set()
        await self._ended.wait()

    def _note(self, error: str) -> None:
        if error != self._error:
            logger.warning("cluster_link_down node=%s error=%s", self._name, error)
        self._error = error

    async def ask(self, what: str, about: dict[str, Any]) -> dict[str, Any]:
        """See MemberLinks.ask."""
        if self.peer is None and not self._is_stopped:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._missing_since_s + LINK_WAIT_S):
                    await self._changed.wait()
        if self.peer is None:
            raise Unanswered(f"node {self._name} is not reached: {self._error or 'it does not run'}")
        try:
            return await self._questions.ask(self.peer, what, about)
        except Unanswered as error:
            if self.presence.version == leveret.__version__:
                raise
            reason = f"{error} ({self._sender}, asked by one of version {leveret.__version__})"
            raise Unanswered(reason) from error

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link.peer.Receiver."""
        if kind is not Type.ANSWER:
            raise LinkError(f"message {kind.name} is not due from a node that is asked")
        if self.peer is not None:
            self._questions.received(self.peer, kind, payload)

    def ended(self, error: Exception | None) -> None:
        """See link.peer.Receiver."""
        self.peer = None
        self._missing_since_s = asyncio.get_running_loop().time()
        self._questions.ended()
        if not self._is_stopped:
            self._note(str(error or "it closed the link"))
        self._ended.set()

    def stop(self) -> None:
        """End the link: the node is gone, or has another address."""
        self._is_stopped = True
        self._running.cancel()
        self._questions.ended()
        if self.peer is not None:
            self.peer.close()
            self.peer = None
        self._changed.set()


async def _nothing(what: str, about: dict[str, Any]) -> dict[str, Any]:
    raise LinkError(f"request {what!r} is not allowed over this link")


class _RequestLink:
    """A link over which another node sends requests (link.peer.Receiver)."""

    def __init__(self, peer: LinkPeer, questions: Questions) -> None:
        self._peer = peer
        self._questions = questions

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link.peer.Receiver."""
        if kind is not Type.QUESTION:
            raise LinkError(f"message {kind.name} is not due from a node that asks")
        self._questions.received(self._peer, kind, payload)

    def ended(self, error: Exception | None) -> None:
        """See link.peer.Receiver."""
        self._questions.ended()


def _prove(handshake: FollowerHandshake, said: HandshakeMessage) -> HandshakeMessage:
    return handshake.answer_hello(said, leadership=NOBODY, followed_epoch=0, led=False, uri="")
