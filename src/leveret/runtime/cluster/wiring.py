"""The wiring of a cluster's node: makes its parts in order, and connects them.

Each object gets its collaborators when it is made. Where two parts would need each other, both get a third one that
is made first:

- `DueQueues`: mirrors, copies and records report due queues; the placement controller, which is made after all of
  them, handles these.
- `ClusterQueues`: the owner of each log, for mirroring, which is made before the roles of queues and works for them.
- `ClusterSide`: the cluster's interface for node and engine, which are made before the cluster's parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.runtime.cluster.answers import ClusterAnswers
from leveret.runtime.cluster.coordinator import Coordinator
from leveret.runtime.cluster.definitions_publication import DefinitionsPublication
from leveret.runtime.cluster.forwarding import Forwarding
from leveret.runtime.cluster.membership.links import MemberLinks, RequestLinks
from leveret.runtime.cluster.membership.listener import ClusterListener, Handler
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.cluster.operations import ClusterCommands
from leveret.runtime.cluster.parts import ClusterParts
from leveret.runtime.cluster.placement.due_queues import DueQueues
from leveret.runtime.cluster.placement.mirror_grace_period import MirrorGracePeriod
from leveret.runtime.cluster.placement.placement_controller import PlacementController
from leveret.runtime.cluster.placement.queue_locations import QueueLocations
from leveret.runtime.cluster.placement.queue_roles import QueueRoles
from leveret.runtime.cluster.placement.queues import ClusterQueues
from leveret.runtime.cluster.placement.queues_led_on import QueuesLedOn
from leveret.runtime.cluster.replication_port import ClusterBarrier, ClusterPort
from leveret.runtime.cluster.sites.collected_queues import CollectedQueues
from leveret.runtime.cluster.sites.recovery_port import ClusterRecoveryPort
from leveret.runtime.cluster.sites.schema_decisions import ClusterSchemaDecisions
from leveret.runtime.cluster.sites.standby_site import ClusterStandbySite
from leveret.runtime.cluster.sites.upstream_site import ClusterAsUpstream
from leveret.runtime.cluster.stream_groups import ClusterStreamGroups
from leveret.runtime.cluster.stream_replicas import StreamReplicas
from leveret.runtime.link.credentials import NodeCredentials
from leveret.runtime.link.listening import AcceptClient
from leveret.runtime.link.peer import LinkPeer, Receiver
from leveret.runtime.mirroring.copies import MirrorCopies
from leveret.runtime.mirroring.sources import MirrorSources
from leveret.runtime.node.cluster_side import ClusterSide
from leveret.runtime.process.clock import elapsed_ms
from leveret.session.link_handshake import Kind, ProvenFollower
from leveret.storage.secret_file import Secret

if TYPE_CHECKING:
    from leveret.runtime.node.node import Node


def enter_cluster(
    member: ClusterMember, node: Node, secret: Secret, accept_client: AcceptClient
) -> Coordinator:
    """Make a node that has recovered nothing yet work as this member of a cluster.

    `accept_client` takes clients that another node passes on. Followers that the node has already get all its
    changes, and its promises wait for them.
    """
    parts = _parts(member, node, secret)
    parts.listener.accept_client = accept_client
    coordinator = Coordinator(node, parts)
    member.definitions_lock.serve(
        node.broker.definitions_lock, lambda: parts.publication.is_busy, coordinator.go_on
    )
    node.enter_cluster(
        ClusterSide(
            operations=ClusterCommands(node, parts),
            is_founder=member.is_founder,
            take_definitions=coordinator.take_definitions,
            make_queue=parts.roles.make_queue,
            forwarding=parts.forwarding,
            leaders=parts.forwarding.leaders,
            replication_port=parts.port,
            barrier=ClusterBarrier(
                member.store.holds_lease_now, parts.sources.cut, node.commits.replication_barrier
            ),
            copy_gone=parts.copies.gone,
            schema_decisions=parts.schema_decisions,
            standby_site=parts.standby_site,
            recovery_port=ClusterRecoveryPort(member, parts.standby_site),
            on_draining=coordinator.drained,
            find_streams=coordinator.streams_of,
            stream_replicas=parts.stream_replicas,
            on_streams=coordinator.streams_open,
            incarnations=CollectedQueues(member, parts.records),
            site=ClusterAsUpstream(member, node.broker, coordinator.streams_of),
        )
    )
    return coordinator


def _parts(member: ClusterMember, node: Node, secret: Secret) -> ClusterParts:
    broker, engine, settings = node.broker, node.engine, node.config.cluster
    credentials = NodeCredentials(secret, member.node_id, member.name, member.run_id)

    # Mirroring: logs to mirrors, and from leaders.
    due = DueQueues()
    queues = ClusterQueues(member.name, node, due)
    grace = MirrorGracePeriod(queues, due)
    sources = MirrorSources(
        node.tree,
        node.commits,
        elapsed_ms,
        grace.mirror_changed,
        queues,
        sync_bytes_s_max=settings.sync_bytes_s_max,
        ack_timeout_ms=settings.mirroring_ack_timeout_ms,
    )
    links = MemberLinks(settings, credentials)
    copies = MirrorCopies(
        node.tree,
        node.commits,
        node.data_dir,
        links.dial,
        node=member.name,
        logs=queues,
        clock_ms=engine.clock_ms,
    )
    forwarding = Forwarding(member.name, node, links.dial, member.run_id)
    forwarding.leaders.replies.runs = lambda name: name != member.name and name in member.state.alive

    # Placement: the nodes of queues.
    locations = QueueLocations(settings, member.state, broker, member.cluster_view)
    stream_groups = ClusterStreamGroups(member, node)
    stream_replicas = StreamReplicas(member, node, copies, locations, stream_groups, forwarding)
    roles = QueueRoles(
        member, node, queues, locations, grace, sources, copies, forwarding, stream_groups.leader_changed
    )
    placement_controller = PlacementController(
        member.store, member.state, broker, locations, roles, member.cluster_view, due
    )
    placement_controller.led_on = QueuesLedOn(node.event_history).take

    broker.may_deliver = member.store.holds_lease_now
    broker.nodes = lambda: max(1, len(member.cluster_view().members))

    # Changes for the other nodes.
    publication = DefinitionsPublication(member, broker, locations.first, placement_controller.unrecorded)
    port = ClusterPort(
        member.store.holds_lease_now,
        roles,
        sources,
        forwarding,
        placement_controller,
        due,
        publication,
        waits_for_mirrors=settings.mirroring_flow_control,
    )
    node.log_store.streams.has_mirrors = True
    node.log_store.streams.on_commit.append(port.committed)
    schema_decisions = ClusterSchemaDecisions(member, node.schema_sync.deciding)
    standby_site = ClusterStandbySite(member, node.config, node.standby.decided, node.standby.vhosts)

    # Requests of the other nodes.
    answers = ClusterAnswers(
        member, queues, roles, placement_controller, node, stream_replicas, stream_groups
    )
    asked = RequestLinks(answers.answer)

    def mirror(peer: LinkPeer, caller: ProvenFollower) -> Receiver:
        return sources.accept(peer, caller.name, caller.run_id)

    handlers: dict[Kind, Handler] = {"member": asked.accept, "relay": forwarding.accept, "mirror": mirror}
    listener = ClusterListener(settings, credentials, handlers, member.why_not)
    return ClusterParts(
        member=member,
        records=queues.records,
        sources=sources,
        links=links,
        copies=copies,
        forwarding=forwarding,
        locations=locations,
        roles=roles,
        stream_replicas=stream_replicas,
        stream_groups=stream_groups,
        placement_controller=placement_controller,
        publication=publication,
        port=port,
        schema_decisions=schema_decisions,
        standby_site=standby_site,
        answers=answers,
        asked=asked,
        listener=listener,
    )
