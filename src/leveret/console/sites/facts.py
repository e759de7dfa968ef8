"""What is known of one site: the last document of each kind, and when the site was heard. Pure."""

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
"""A site that was heard within this time is alive; the console asks every two to eight seconds."""


class DocumentRequest(NamedTuple):
    """A document to ask for: where its answer is kept, the path, and its shape."""

    name: str
    path: str
    kind: Any


# The statistics of 10,000 queues take their node 285 ms of processor time, their counts 62 ms, whatever the columns.
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
"""What changes all the time, and costs a node little."""
SELDOM: Final = (
    DocumentRequest("queues", f"/api/queues?{_COUNTS_ONLY}", list[QueueStatus]),
    DocumentRequest("vhosts", "/api/vhosts?columns=name,tags", list[VhostStatus]),
    DocumentRequest("policies", "/api/policies", list[PolicyStatus]),
    DocumentRequest("schema", "/api/tanzu/osr/schema/status", SchemaStatus),
    DocumentRequest("cluster", "/api/cluster/node", ClusterStatus),
    DocumentRequest("divergent", "/api/replication/divergent", list[DivergentRow]),
)
"""What costs by the number of queues, or changes by the hand of an operator."""


@dataclass(slots=True)
class SiteFacts:
    """Of one site, as one user sees it.

    Attributes:
        heard_ms: when the site last answered as its API promises; None: never.
        alive_since_ms: since when it has answered without a break; None: it does not.
        queues_ms: when the list of queues came; None: not yet.
        error: why the last question got no answer; empty if it got one.
        refused: why the site does not serve this user; empty if it does.
        troubles: by the name of a document, why the last attempt to have it failed.
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
        """Whether what is known is how the site is now."""
        return self.heard_ms is not None and now_ms - self.heard_ms < HEARD_MS

    def age_ms(self, now_ms: int) -> int | None:
        """How old what is known is; None if nothing is."""
        return None if self.heard_ms is None else max(0, now_ms - self.heard_ms)

    def take(self, question: DocumentRequest, answer: Any, now_ms: int) -> None:
        """Keep an answer; None is that the site has no such document, or that this user may not see it."""
        if answer is not None:
            setattr(self, question.name, answer)
        self.troubles.pop(question.name, None)
        if question.name == "queues":
            self.queues_ms = now_ms
        self.heard(now_ms)

    def heard(self, now_ms: int) -> None:
        """The site answered."""
        if self.alive_since_ms is None:
            self.alive_since_ms = now_ms
        self.heard_ms, self.error, self.refused = now_ms, "", ""

    def silent(self, error: str) -> None:
        """It did not, or not as its API promises."""
        self.error, self.alive_since_ms = error, None

    def refuses(self, reason: str, now_ms: int) -> None:
        """It answered that this user may not ask."""
        self.heard(now_ms)
        self.refused = reason
