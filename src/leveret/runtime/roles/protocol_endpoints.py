"""The ways in to a leading node, for clients that other nodes pass on to it."""

from __future__ import annotations

from collections.abc import Callable

from leveret.model.errors import PreconditionFailed
from leveret.runtime.node.node import Node
from leveret.runtime.sockets.acceptor import ProtocolEndpoint

HttpEndpoint = Callable[[bool], ProtocolEndpoint | None]
"""Returns the way in to the HTTP listeners, with or without TLS; None without one."""


def endpoint_of(node: Node, name: str, http: HttpEndpoint) -> ProtocolEndpoint:
    """Return the way in to a kind of listener of a node that leads: amqp, amqps, stream, streams, http, https.

    Raises:
        PreconditionFailed: its listeners are not open, or it has none of this kind.
    """
    if not node.is_open:
        raise PreconditionFailed(f"{node.config.node_name} is about to lead, or to stop")
    is_tls = name in ("amqps", "streams", "https")
    listening = {"amqp": node.amqp.listening, "stream": node.streams.listening}.get(name.removesuffix("s"))
    endpoint = http(is_tls) if listening is None else listening.endpoint(is_tls=is_tls)
    if endpoint is None:
        raise PreconditionFailed(f"the leader {node.config.node_name} has no listener of kind {name} open")
    return endpoint
