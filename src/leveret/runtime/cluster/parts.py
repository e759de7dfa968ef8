"""The parts of a cluster's node, in addition to those of a single node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leveret.core.replication.cluster import Placement
from leveret.model.definitions import QueueKey
from leveret.runtime.cluster.answers import ClusterAnswers
from leveret.runtime.cluster.definitions_publication import DefinitionsPublication
from leveret.runtime.cluster.forwarding import Forwarding
from leveret.runtime.cluster.membership.links import MemberLinks, RequestLinks
from leveret.runtime.cluster.membership.listener import ClusterListener
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.cluster.placement.placement_controller import PlacementController
from leveret.runtime.cluster.placement.queue_locations import QueueLocations
from leveret.runtime.cluster.placement.queue_roles import QueueRoles
from leveret.runtime.cluster.replication_port import ClusterPort
from leveret.runtime.cluster.sites.schema_decisions import ClusterSchemaDecisions
from leveret.runtime.cluster.sites.standby_site import ClusterStandbySite
from leveret.runtime.cluster.stream_groups import ClusterStreamGroups
from leveret.runtime.cluster.stream_replicas import StreamReplicas
from leveret.runtime.mirroring.copies import MirrorCopies
from leveret.runtime.mirroring.sources import MirrorSources


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterParts:
    """The parts that a cluster's node has beside a single node's, in the order in which they are made."""

    member: ClusterMember
    records: Mapping[QueueKey, Placement]
    sources: MirrorSources
    links: MemberLinks
    copies: MirrorCopies
    forwarding: Forwarding
    locations: QueueLocations
    roles: QueueRoles
    stream_replicas: StreamReplicas
    stream_groups: ClusterStreamGroups
    placement_controller: PlacementController
    publication: DefinitionsPublication
    port: ClusterPort
    schema_decisions: ClusterSchemaDecisions
    standby_site: ClusterStandbySite
    answers: ClusterAnswers
    asked: RequestLinks
    listener: ClusterListener
