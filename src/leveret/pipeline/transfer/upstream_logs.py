"""The outgoing logs of an upstream, and the links to their nodes: of a single node, or of all nodes of a cluster.

The first endpoint that answers says who it is. A single node has the only log of a vhost. A node of a cluster tells the
others; each serves the log of the queues that it leads, at its own endpoint. That is asked again now and then, because
nodes come and go.

A cluster that was founded by a single node goes on with that node's log, under the name that it has in the archive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from leveret.model.errors import LeveretError
from leveret.pipeline.archive.identities import UpstreamIdentities
from leveret.pipeline.jobs.job import TransferJob
from leveret.pipeline.upstream.link import UpstreamLink, cluster_of, label_at, link_of
from leveret.pipeline.upstream.members import UpstreamMember, check_one_site, members_at
from leveret.pipeline.upstream.stream_client import StreamClient, UpstreamUnreachable
from leveret.wire.log_name import label_of, log_name, node_of, title_of, vhost_of
from leveret.wire.record import OUTGOING_STREAM

MEMBERS_INTERVAL_S: Final = 1.0


class UpstreamLog(NamedTuple):
    """A log that its node can be asked for.

    Attributes:
        log: its name in the archive.
        link: to its node.
        label: the node's; empty for a single node.
        site: the id of the cluster; empty for a single node.
    """

    log: str
    link: UpstreamLink
    label: str
    site: str

    def client(self, job: TransferJob) -> StreamClient:
        """The open connection to the log's node, or a new one.

        Raises:
            LeveretError: there is none, or another node of the cluster answers since the log was found.
        """
        client = self.link.client(job)
        if label_at(client) != self.label:
            raise UpstreamUnreachable(f"{title_of(self.log)}: another node answers at {self.link.endpoint}")
        return client


class _Vhost:
    """What was known of one vhost."""

    def __init__(self) -> None:
        self.members: list[UpstreamMember] = []
        self.asked_s = -MEMBERS_INTERVAL_S
        self.asked: StreamClient | None = None
        self.is_one_site = False
        self.logs: dict[str, UpstreamLog] = {}


class UpstreamLogs:
    """See the module.

    Attributes:
        job: the transfer's; its vhosts may change.
    """

    def __init__(self, job: TransferJob, identities: UpstreamIdentities) -> None:
        """Ask nobody yet."""
        self.job = job
        self._identities = identities
        self._vhosts: dict[str, _Vhost] = {}

    def of(self, vhost: str) -> list[UpstreamLog]:
        """The logs of a vhost whose nodes run.

        Raises:
            LeveretError: no endpoint answers, or they are of several sites.
        """
        known = self._vhosts.setdefault(vhost, _Vhost())
        first = link_of(self.job, vhost)
        client = first.client(self.job)
        here = label_at(client)
        if not here:
            found = [UpstreamLog(vhost, first, "", "")]
        else:
            self._ask(known, vhost, client)
            # The site stays within reach when the nodes are lost whose endpoints the job names.
            first.others = [each.endpoint for each in known.members if each.endpoint]
            self._find_founder(known, vhost, first)
            found = [
                self._log_of(vhost, each, first, cluster_of(client))
                for each in known.members
                if each.endpoint
            ]
        known.logs = {each.log: each for each in found}
        return found

    def all_of(self, vhost: str) -> list[UpstreamLog]:
        """As `of`, and only if no node is missed.

        Raises:
            LeveretError: as `of`; UpstreamUnreachable: a node does not run, and leads queues that are collected.
        """
        found = self.of(vhost)
        for each in self._vhosts[vhost].members:
            if each.is_missed:
                raise UpstreamUnreachable(f"node '{node_of(each.label)}' does not run, and leads queues")
        return found

    def _ask(self, known: _Vhost, vhost: str, client: StreamClient) -> None:
        if not known.is_one_site:
            check_one_site(self.job, vhost)
            known.is_one_site = True
        if client is not known.asked or time.monotonic() - known.asked_s >= MEMBERS_INTERVAL_S:
            known.members = members_at(client)
            known.asked, known.asked_s = client, time.monotonic()

    def _find_founder(self, known: _Vhost, vhost: str, first: UpstreamLink) -> None:
        """Learn which node's log is the one that is here from the time when the cluster was a single node."""
        log_id = self._identities.of(vhost).log_id
        if not log_id or self._identities.of(vhost).label:
            return
        for each in known.members:
            if not each.endpoint:
                continue
            try:
                client = self._link(vhost, each, first).client(self.job)
                if client.stats(OUTGOING_STREAM).get("log_id") == log_id:
                    self._identities.note_founder(vhost, each.label, cluster_of(client))
                    return
            except LeveretError:
                continue

    def _log_of(self, vhost: str, member: UpstreamMember, first: UpstreamLink, site: str) -> UpstreamLog:
        is_founder = self._identities.of(vhost).label == member.label
        log = vhost if is_founder else log_name(vhost, member.label)
        return UpstreamLog(log, self._link(vhost, member, first), member.label, site)

    def _link(self, vhost: str, member: UpstreamMember, first: UpstreamLink) -> UpstreamLink:
        """The link to a node; the first one that answered has one already."""
        if label_at(first.client(self.job)) == member.label:
            return first
        return link_of(self.job, log_name(vhost, member.label), member.endpoint, member.label)

    def forget(self, vhost: str) -> None:
        """Close the links of a vhost that is not followed any more."""
        known = self._vhosts.pop(vhost, _Vhost())
        for link in (link_of(self.job, vhost), *(each.link for each in known.logs.values())):
            link.close()

    def is_missed(self, log: str) -> bool:
        """Whether the node of a log does not run, and leads queues that are collected."""
        known = self._vhosts.get(vhost_of(log))
        label = label_of(log) or self._identities.of(log).label
        return known is not None and any(each.is_missed for each in known.members if each.label == label)

    def where(self, log: str) -> tuple[str, str]:
        """The endpoint and the label of a log's node; empty for a single node."""
        known = self._vhosts.get(vhost_of(log), _Vhost())
        found = known.logs.get(log)
        return (found.link.endpoint, found.label) if found is not None and found.label else ("", "")

    def links(self) -> Iterator[tuple[str, UpstreamLink]]:
        """The logs that were found last, with their links."""
        for known in self._vhosts.values():
            for each in known.logs.values():
                yield each.log, each.link
