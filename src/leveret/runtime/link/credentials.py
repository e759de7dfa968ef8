"""A node's identity and secret, as it proves them to other nodes: runtime.cluster nodes by name, followers by id."""

from __future__ import annotations

import os
from typing import NamedTuple

from leveret.session.link_handshake import NONCE_BYTES, FollowerHandshake, Kind, LeaderHandshake, PassedOn
from leveret.storage.secret_file import Secret


class NodeCredentials(NamedTuple):
    """This node's identity and secret, for other nodes.

    Attributes:
        secret: the secret that all nodes share.
        node_id: the id of this node's data.
        name: such as `rabbit@host`.
        run_id: the id of this run, of a node of a cluster.
    """

    secret: Secret
    node_id: str
    name: str
    run_id: str = ""

    def dials(
        self, kind: Kind, channel: bytes, *, vhost: str = "", passed_on: PassedOn | None = None
    ) -> FollowerHandshake:
        """Begin the handshake with a node that this one has connected to, over that channel."""
        return FollowerHandshake(
            bytes(self.secret.octets),
            kind=kind,
            node_id=self.node_id,
            name=self.name,
            nonce=os.urandom(NONCE_BYTES),
            channel=channel,
            run_id=self.run_id,
            vhost=vhost,
            passed_on=passed_on,
        )

    def answers(self, channel: bytes, kinds: frozenset[Kind]) -> LeaderHandshake:
        """Begin the handshake with a node that has connected to this one, for one of these kinds of links."""
        return LeaderHandshake(
            bytes(self.secret.octets),
            node_id=self.node_id,
            name=self.name,
            nonce=os.urandom(NONCE_BYTES),
            channel=channel,
            kinds=kinds,
        )
