"""A job: the instruction to a pipeline process, one JSON line on its standard input.

Only the job has credentials: arguments, the environment, files and logs never do.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import msgspec

from leveret.model.errors import StorageError
from leveret.pipeline.files.files import Place, place_of
from leveret.pipeline.jobs.tls import TlsSettings
from leveret.wire.record import taking_over

PLANS: Final = "plans"
EXPORTS: Final = "exports"
SCRATCH: Final = "rehearsals"


class SparkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The place of Spark; without any, this machine and all its cores.

    Attributes:
        master: as in `spark-submit --master`; None leaves it to Spark's own configuration.
        conf: settings of Spark, which override ours.
        python: the Python of workers on other machines; None leaves it to Spark's own configuration.
    """

    master: str | None = None
    conf: dict[str, str] = {}
    python: str | None = None


class LoginCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """User and password of a login."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"LoginCredentials(username={self.username!r})"


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a recovery includes.

    Attributes:
        start_from_scratch: include settled and already recovered messages.
        all_available: count messages with unreadable settlements as unsettled, and leave out unreadable messages.
        queues: the included queues' names; none means all.
        as_of_ms: the state of the queues at that time, without later messages and settlements.
    """

    start_from_scratch: bool = False
    all_available: bool = False
    queues: list[str] = []
    as_of_ms: int | None = None

    @property
    def is_of_all(self) -> bool:
        """Whether it includes every unsettled message."""
        return not self.queues and self.as_of_ms is None

    def wants(self, queue: str) -> bool:
        """Whether it includes a queue."""
        return not self.queues or queue in self.queues


EVERYTHING: Final = Selection()


class AmqpTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that speaks AMQP 0-9-1.

    Attributes:
        vhost: the target of all messages; None: messages of a vhost go to the one of that name.
        tls: use TLS; the server's certificate is verified unless `verify` is false.
        cacertfile: the authorities to trust instead of the system's.
        queues: by vhost and queue, the arguments of queues that must be made.
        auto_delete: by vhost, those of them that go with their last consumer.
    """

    host: str
    port: int
    credentials: LoginCredentials
    vhost: str | None = None
    tls: bool = False
    verify: bool = True
    cacertfile: str = ""
    queues: dict[str, dict[str, dict[str, Any]]] = {}
    auto_delete: dict[str, list[str]] = {}

    def is_auto_delete(self, vhost: str, queue: str) -> bool:
        """Whether a queue that must be made goes with its last consumer."""
        return queue in self.auto_delete.get(vhost, ())

    def place_of(self, vhost: str) -> str:
        """The target vhost of messages of `vhost`."""
        return vhost if self.vhost is None else self.vhost

    def digest_of(self, vhost: str) -> str:
        """A digest of the target of messages of `vhost`, without credentials."""
        place = f"{self.host}\n{self.port}\n/{self.place_of(vhost)}"
        return hashlib.sha256(place.encode()).hexdigest()[:16]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Any task on one data directory.

    Attributes:
        data_dir: a path, or the URI of a place in a store.
        work_dir: a path, for locks, logs and Spark's scratch files; empty for the data directory.
        terms: in an archive that nodes of a cluster share, by vhost, the term in which this node owns it; None in an
            archive of this node alone.
    """

    data_dir: str
    work_dir: str = ""
    terms: dict[str, int] | None = None

    @property
    def owned(self) -> list[str] | None:
        """The vhosts that this node owns in a shared archive; None in an archive of this node alone."""
        return None if self.terms is None else sorted(self.terms)

    @property
    def root(self) -> Place:
        """The data directory.

        Raises:
            StorageError: no archive can be kept there.
        """
        return place_of(self.data_dir)

    @property
    def work(self) -> Path:
        """The directory for temporary files on this machine.

        Raises:
            StorageError: there is none.
        """
        found = place_of(self.work_dir or self.data_dir)
        if not isinstance(found, Path):
            raise StorageError(f"{found}: a job on an archive in a store needs a work_dir on this machine")
        return found


class TransferJob(Job, frozen=True, kw_only=True):
    """Follow an upstream until a command ends it.

    Attributes:
        reference: the name of this downstream's position at the upstream (`wire.record.downstream_reference`).
        taking_over: the vhosts of which a promotion would recover from another archive (`wire.record.taking_over`).
        origins: of these vhosts, by outgoing log (`wire.log_name`), the ids of those with records in that archive.
        endpoints: `host:port` of the upstream's stream listeners; the first one reachable is used.
        tls: the TLS settings of the connections; None without TLS.
        batch_bytes_max: the most octets of the outgoing logs in one micro-batch. retain_bytes_max, retain_ms_max: the
            limits of a vhost's history; see `compact`.
        compact_interval_s: the interval of checks against these limits.
        batch_interval_ms: the least time between the begins of two micro-batches, unless the first brought much
            (`transfer.source`); more makes fewer, larger files.
    """

    reference: str
    endpoints: list[str]
    credentials: LoginCredentials
    vhosts: list[str]
    taking_over: list[str] = []
    origins: dict[str, int] = {}
    tls: TlsSettings | None = None
    spark: SparkSettings = SparkSettings()
    batch_bytes_max: int = 134_217_728
    batch_interval_ms: int = 400
    retain_bytes_max: int | None = None
    retain_ms_max: int | None = None
    compact_interval_s: float = 60.0
    timeout_s: float = 5.0

    def reference_of(self, vhost: str) -> str:
        """The name of this downstream's position in the log of a vhost."""
        return taking_over(self.reference) if vhost in self.taking_over else self.reference


class RecoverJob(Job, frozen=True, kw_only=True):
    """Publish the unsettled messages, to the node itself or to any other broker.

    Attributes:
        endpoint: `host:port` of the node's stream listener.
        start_from_scratch: include settled and already recovered messages.
        all_available: count messages with unreadable settlements as unsettled, and leave out unreadable messages.
        exclude: the excluded vhosts.
        queues: the included queues; none means all.
        as_of_ms: recover the state of the queues at that time.
        dry_run: count the messages, without any change.
        to: recover into this broker instead, by AMQP 0-9-1.
        scratch: the name of a dry run or rehearsal; its plans are deleted afterwards.
        vhosts: the target vhosts by vhost; others are excluded. None: all go to the one of the same name.
        followed: the vhosts that the site follows; others are excluded, because settlements of their messages do not
            come any more. None: all.
        staging: the node's directory of staged segments (`recovery.segments`); empty to publish all messages.
        compare: consume the messages from this broker again and compare them with the archive.
    """

    endpoint: str
    credentials: LoginCredentials
    start_from_scratch: bool = False
    all_available: bool = False
    exclude: list[str] = []
    queues: list[str] = []
    as_of_ms: int | None = None
    dry_run: bool = False
    to: AmqpTarget | None = None
    scratch: str = ""
    vhosts: dict[str, str] | None = None
    followed: list[str] | None = None
    compare: AmqpTarget | None = None
    staging: str = ""
    spark: SparkSettings = SparkSettings()
    timeout_s: float = 60.0

    def plans_of(self, vhost: str) -> str:
        """The directory of a vhost's plans, within the data directory; each target has its own."""
        if self.to is not None:
            return f"{EXPORTS}/{self.to.digest_of(vhost)}"
        return PLANS

    def new_plans_of(self, vhost: str) -> str:
        """The directory of a vhost's new plans, within the data directory."""
        return f"{SCRATCH}/{self.scratch}" if self.scratch else self.plans_of(vhost)

    def wants(self, vhost: str) -> bool:
        """Whether the vhost is included."""
        return self._is_requested(vhost) and (self.followed is None or vhost in self.followed)

    def is_unfollowed(self, vhost: str) -> bool:
        """Whether the vhost is excluded only because the site does not follow it any more."""
        return self._is_requested(vhost) and not self.wants(vhost)

    def _is_requested(self, vhost: str) -> bool:
        return vhost not in self.exclude and (self.vhosts is None or vhost in self.vhosts)

    def place_of(self, vhost: str) -> str:
        """The target of messages of `vhost`, which is included; in a rehearsal never the vhost itself."""
        return vhost if self.vhosts is None else self.vhosts[vhost]

    @property
    def selection(self) -> Selection:
        """The included messages."""
        return Selection(
            start_from_scratch=self.start_from_scratch,
            all_available=self.all_available,
            queues=self.queues,
            as_of_ms=self.as_of_ms,
        )


class ForgetJob(Job, frozen=True, kw_only=True):
    """Delete the transferred data of these vhosts."""

    vhosts: list[str]


class DeleteJob(Job, frozen=True, kw_only=True):
    """Delete all transferred data."""


class IdentifyJob(Job, frozen=True, kw_only=True):
    """Tell the id of an archive that nodes of a cluster share (`archive.ownership`).

    Attributes:
        expected: the id that the other nodes found; empty if none has looked yet.
    """

    cluster_id: str
    expected: str = ""


class RetireArchiveJob(Job, frozen=True, kw_only=True):
    """Move all transferred data to a directory named by a time, where they are not read."""

    at_ms: int


class PositionsJob(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a promoted node for its positions in outgoing logs.

    Attributes:
        endpoints: `host:port` of its stream listeners.
        logs: the ids of the logs, by vhost.
    """

    endpoints: list[str]
    credentials: LoginCredentials
    logs: dict[str, int]
    tls: TlsSettings | None = None
    timeout_s: float = 10.0


class InspectJob(Job, frozen=True, kw_only=True):
    """Count all transferred messages."""

    spark: SparkSettings = SparkSettings()


class ExportJob(Job, frozen=True, kw_only=True):
    """Write the table of transferred messages to files; see `table.export`.

    Attributes:
        target: a path, or the URI of a place in a store, without files.
        format: the format of the files.
        options: the options of the query whose rows are exported (`table.request`).
    """

    target: str
    format: str = "parquet"
    options: dict[str, str] = {}
    spark: SparkSettings = SparkSettings()


class ContentsJob(Job, frozen=True, kw_only=True):
    """List the transferred data, without Spark.

    Attributes:
        with_queues: whether to list each queue, too, of which there may be very many.
    """

    with_queues: bool = True


class BrowseJob(Job, frozen=True, kw_only=True):
    """Look at archived messages of one queue, without Spark; see `archive.browse`."""

    vhost: str
    queue: str
    from_ms: int = 0
    count: int
    body_bytes_max: int
