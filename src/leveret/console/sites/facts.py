"""The facts about one site: its last document of each kind, and the time of its last answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from leveret.console.sites.documents import (
    ClusterStatus,
    DivergentRow,
    NodeReplication,
    NodeStatus,
    Overview,
    PlotsDocument,
    PolicyStatus,
    QueueStatus,
    SchemaStatus,
    StandbyDetails,
    VhostStatus,
)

HEARD_MS: Final = 15_000
"""A site that answered within this time is alive; the console sends requests every three to eight seconds."""


class DocumentRequest(NamedTuple):
    """A request for a document: the field of SiteFacts for the answer, the path, and the answer's type."""

    name: str
    path: str
    kind: Any


# The statistics of 10,000 queues cost their node 285 ms of CPU time, their counts 62 ms, for any choice of columns.
_COUNTS_ONLY: Final = "disable_stats=true&enable_queue_totals=true"
_NODE_COLUMNS: Final = ",".join(NodeStatus.__struct_fields__)
_OVERVIEW_COLUMNS: Final = ",".join(Overview.__struct_fields__)

OFTEN: Final = (
    DocumentRequest("standby", "/api/replication/standby/details", StandbyDetails),
    DocumentRequest("replication", "/api/replication/node", NodeReplication),
    DocumentRequest("nodes", f"/api/nodes?columns={_NODE_COLUMNS}", list[NodeStatus]),
    DocumentRequest("overview", f"/api/overview?columns={_OVERVIEW_COLUMNS}", Overview),
    DocumentRequest("plots", "/api/replication/plots?age_s=60&step_s=5", PlotsDocument),
)
"""Documents that change all the time, and cost a node little."""
SELDOM: Final = (
    DocumentRequest("queues", f"/api/queues?{_COUNTS_ONLY}", list[QueueStatus]),
    DocumentRequest("vhosts", "/api/vhosts?columns=name,tags", list[VhostStatus]),
    DocumentRequest("policies", "/api/policies", list[PolicyStatus]),
    DocumentRequest("schema", "/api/tanzu/osr/schema/status", SchemaStatus),
    DocumentRequest("cluster", "/api/cluster/node", ClusterStatus),
    DocumentRequest("divergent", "/api/replication/divergent", list[DivergentRow]),
)
"""Documents whose cost grows with the number of queues, or that only operators change."""


@dataclass(slots=True)
class SiteFacts:
    """The facts about one site that one user may see.

    Attributes:
        heard_ms: the time of the site's last answer in the form that its API promises; None before the first.
        alive_since_ms: the begin of the site's unbroken series of answers; None while it does not answer.
        queues_ms: the time at which the list of queues came; None before the first.
        error: the reason why the last request got no answer; empty if it got one.
        refused: the reason why the site does not serve this user; empty if it does.
        troubles: by the name of a document, the reason why the last request for it failed.
    """

    site: str
    user: str = ""
    tags: tuple[str, ...] = ()
    heard_ms: int | None = None
    alive_since_ms: int | None = None
    queues_ms: int | None = None
    error: str = ""
    refused: str = ""
    troubles: dict[str, str] = field(default_factory=dict)
    standby: StandbyDetails = field(default_factory=StandbyDetails)
    replication: NodeReplication = field(default_factory=NodeReplication)
    nodes: list[NodeStatus] = field(default_factory=list)
    overview: Overview = field(default_factory=Overview)
    plots: PlotsDocument | None = None
    vhosts: list[VhostStatus] = field(default_factory=list)
    policies: list[PolicyStatus] = field(default_factory=list)
    queues: list[QueueStatus] = field(default_factory=list)
    schema: SchemaStatus = field(default_factory=SchemaStatus)
    cluster: ClusterStatus = field(default_factory=ClusterStatus)
    divergent: list[DivergentRow] = field(default_factory=list)

    def is_heard(self, now_ms: int) -> bool:
        """Return whether the site is alive, so that the facts are current.

        If the time of day is set back, a silent site does not count as heard until that time comes again.
        """
        return self.heard_ms is not None and abs(now_ms - self.heard_ms) < HEARD_MS

    def age_ms(self, now_ms: int) -> int | None:
        """Return the age of the facts; None before the first answer."""
        return None if self.heard_ms is None else max(0, now_ms - self.heard_ms)

    def take(self, question: DocumentRequest, answer: Any, now_ms: int) -> None:
        """Store an answer; None means that the site has no such document, or does not show it to this user."""
        if answer is not None:
            setattr(self, question.name, answer)
        self.troubles.pop(question.name, None)
        if question.name == "queues":
            self.queues_ms = now_ms
        self.heard(now_ms)

    def heard(self, now_ms: int) -> None:
        """Note that the site answered."""
        if self.alive_since_ms is None:
            self.alive_since_ms = now_ms
        self.heard_ms, self.error, self.refused = now_ms, "", ""

    def silent(self, error: str) -> None:
        """Note that the site did not answer, or not in the form that its API promises."""
        self.error, self.alive_since_ms = error, None

    def refuses(self, reason: str, now_ms: int) -> None:
        """Note that the site refused this user."""
        self.heard(now_ms)
        self.refused = reason
