"""A node of a cluster as far as its door and its links go, and what is at the other end of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import leveret
from leveret.config.sections.cluster import Cluster
from leveret.config.uris import NodeUri
from leveret.core.replication.cluster import Presence
from leveret.runtime.cluster.membership.links import MemberLinks, RequestLinks
from leveret.runtime.cluster.membership.listener import ClusterListener, Handler
from leveret.runtime.link.credentials import NodeCredentials
from leveret.runtime.link.peer import LinkPeer, Receiver
from leveret.session.link_handshake import Kind, ProvenFollower
from leveret.storage.secret_file import Secret
from leveret.testing.network.ports import LOOPBACK
from leveret.wire.link import Type

SECRET: Final = Secret(b"s" * 44)
PATIENCE_S: Final = 30.0
SETTINGS: Final = Cluster(port=0)


class Other:
    """What is at one end of a link that is no member's (link.peer.Receiver)."""

    def __init__(self) -> None:
        self.got: list[tuple[Type, bytes]] = []
        self.is_over = asyncio.Event()
        self.error: Exception | None = None

    def received(self, kind: Type, payload: memoryview) -> None:
        self.got.append((kind, bytes(payload)))

    def ended(self, error: Exception | None) -> None:
        self.error = error
        self.is_over.set()


class Node:
    """A door and links, and who came."""

    def __init__(self, name: str, settings: Cluster = SETTINGS, **credentials: Any) -> None:
        own = NodeCredentials(SECRET, f"id-{name}", name, f"run-{name}")._replace(**credentials)
        self.name = name
        self.asked: list[tuple[str, str, Any]] = []
        self.came: list[tuple[ProvenFollower, LinkPeer]] = []
        self.others: list[Other] = []
        self.refusal = ""
        self.version = leveret.__version__
        self.on_came: Callable[[LinkPeer], None] = lambda peer: None
        self.answers: Callable[[str, Any], Awaitable[dict[str, Any]]] = self._echo
        self.links = MemberLinks(settings, own)
        self.asked_links = RequestLinks(self.answer)
        handlers: dict[Kind, Handler] = {
            "member": self.asked_links.accept,
            "relay": self.take,
            "mirror": self.take,
        }
        self.listener = ClusterListener(settings, own, handlers, lambda caller: self.refusal)

    async def _echo(self, what: str, about: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"node": self.name, "what": what, "about": about}

    async def answer(self, asker: str, what: str, about: Any) -> dict[str, Any]:
        self.asked.append((asker, what, about))
        return await self.answers(what, about)

    def take(self, peer: LinkPeer, caller: ProvenFollower) -> Receiver:
        self.came.append((caller, peer))
        self.others.append(Other())
        self.on_came(peer)
        return self.others[-1]

    def presence(self, port: int = 0) -> Presence:
        uri = str(NodeUri(self.listener.uri.scheme, LOOPBACK, port)) if port else str(self.listener.uri)
        return Presence(f"run-{self.name}", uri, "", 0, self.version)

    def presence_as(self, scheme: str) -> Presence:
        return Presence(
            f"run-{self.name}", f"{scheme}://{LOOPBACK}:{self.listener.uri.port}", "", 0, self.version
        )

    def knows(self, *nodes: Node, **more: Presence) -> None:
        self.links.know({node.name: node.presence() for node in nodes} | more)


@asynccontextmanager
async def started(*nodes: Node) -> AsyncIterator[None]:
    for one in nodes:
        await one.listener.start()
    try:
        yield
    finally:
        for one in nodes:
            one.links.stop()
            one.asked_links.stop()
            await one.listener.stop()
