"""A job: the instruction to a pipeline process, one JSON line on its standard input.

The job is the only place of credentials: they are not in arguments, the environment, files or logs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import msgspec

from leveret.model.errors import StorageError
from leveret.pipeline.files.files import Place, place_of
from leveret.pipeline.jobs.tls import TlsSettings

PLANS: Final = "plans"
EXPORTS: Final = "exports"
SCRATCH: Final = "rehearsals"


class SparkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The place of Spark; without any, this machine and all its cores.

    Attributes:
        master: as `spark-submit --master`; None leaves it to Spark's own configuration.
        conf: any of Spark's settings; they win over ours.
        python: of workers on other machines; None leaves it to Spark's own configuration.
    """

    master: str | None = None
    conf: dict[str, str] = {}
    python: str | None = None


class LoginCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """User and password of a login."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(username={self.username!r})"


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a recovery is to recover.

    Attributes:
        start_from_scratch: settled and already recovered messages too.
        all_available: go on when it cannot be read what is settled, which then counts as unsettled, and without
            messages that cannot be read.
        queues: by name; none means all.
        as_of_ms: as the queues stood at that time: what came or was settled later counts for nothing.
    """

    start_from_scratch: bool = False
    all_available: bool = False
    queues: list[str] = []
    as_of_ms: int | None = None

    @property
    def is_of_all(self) -> bool:
        """Whether nothing that is not settled is left out."""
        return not self.queues and self.as_of_ms is None

    def wants(self, queue: str) -> bool:
        """Whether the queue is one of them."""
        return not self.queues or queue in self.queues


EVERYTHING: Final = Selection()


class AmqpTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that speaks AMQP 0-9-1.

    Attributes:
        vhost: where everything goes; None: messages of a vhost go to the one of that name.
        tls: speak TLS; the server's certificate is verified unless `verify` is false.
        cacertfile: of the authorities to trust instead of the system's.
        queues: by vhost and queue, arguments for queues that are not there yet.
        auto_delete: by vhost, which of those go with their last consumer.
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
        """Whether a queue goes with its last consumer, if it is to be made."""
        return queue in self.auto_delete.get(vhost, ())

    def place_of(self, vhost: str) -> str:
        """The vhost that messages of `vhost` go to."""
        return vhost if self.vhost is None else self.vhost

    def digest_of(self, vhost: str) -> str:
        """Tells where messages of `vhost` go from every other place, without credentials."""
        place = f"{self.host}\n{self.port}\n/{self.place_of(vhost)}"
        return hashlib.sha256(place.encode()).hexdigest()[:16]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Any task on one data directory.

    Attributes:
        data_dir: a path, or the URI of a place in a store.
        work_dir: a path, for locks, logs and Spark's scratch; empty for the data directory.
    """

    data_dir: str
    work_dir: str = ""

    @property
    def root(self) -> Place:
        """The data directory.

        Raises:
            StorageError: no archive can be kept there.
        """
        return place_of(self.data_dir)

    @property
    def work(self) -> Path:
        """Where this machine keeps what need not last.

        Raises:
            StorageError: that is nowhere.
        """
        found = place_of(self.work_dir or self.data_dir)
        if not isinstance(found, Path):
            raise StorageError(f"{found}: a job on an archive in a store needs a work_dir on this machine")
        return found


class TransferJob(Job, frozen=True, kw_only=True):
    """Follow an upstream until told to stop.

    Attributes:
        reference: under which the upstream keeps the position of this downstream (`wire.record.downstream_reference`).
        endpoints: `host:port` of the upstream's stream listeners; the first one reachable is used.
        tls: how the connections are encrypted; None: they are not.
        batch_bytes_max: most octets of the outgoing logs in one micro-batch.
        retain_bytes_max, retain_ms_max: how much history is kept of a vhost; see `compact`.
        compact_interval_s: how often to look whether there is more.
        batch_interval_ms: least time between the beginnings of two micro-batches; fewer, larger files.
    """

    reference: str
    endpoints: list[str]
    credentials: LoginCredentials
    vhosts: list[str]
    tls: TlsSettings | None = None
    spark: SparkSettings = SparkSettings()
    batch_bytes_max: int = 134_217_728
    batch_interval_ms: int = 400
    retain_bytes_max: int | None = None
    retain_ms_max: int | None = None
    compact_interval_s: float = 60.0
    timeout_s: float = 5.0


class RecoverJob(Job, frozen=True, kw_only=True):
    """Publish what is unsettled, to the node itself or to a broker of any make.

    Attributes:
        endpoint: `host:port` of the node's stream listener.
        start_from_scratch: settled and already recovered messages too.
        all_available: go on when it cannot be read what is settled, which then counts as unsettled, and without
            messages that cannot be read.
        exclude: vhosts to leave alone.
        queues: the only ones to recover; none means all.
        as_of_ms: recover the queues as they stood at that time.
        dry_run: say what would be recovered, and leave everything as it is.
        to: recover into this broker instead, by AMQP 0-9-1.
        scratch: name of a dry run or rehearsal; its plans are forgotten afterwards.
        vhosts: where messages of a vhost go; others are left alone. None: all go to the one of that name.
        compare: take the messages out of this broker again and compare them with the archive.
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
    compare: AmqpTarget | None = None
    spark: SparkSettings = SparkSettings()
    timeout_s: float = 60.0

    def plans_of(self, vhost: str) -> str:
        """Where a vhost's plans are kept, within the data directory: each target knows only its own."""
        if self.to is not None:
            return f"{EXPORTS}/{self.to.digest_of(vhost)}"
        return PLANS

    def new_plans_of(self, vhost: str) -> str:
        """Where new plans of a vhost are made, within the data directory."""
        return f"{SCRATCH}/{self.scratch}" if self.scratch else self.plans_of(vhost)

    def wants(self, vhost: str) -> bool:
        """Whether the vhost is one of those that are asked for."""
        return vhost not in self.exclude and (self.vhosts is None or vhost in self.vhosts)

    def place_of(self, vhost: str) -> str:
        """The vhost that messages of `vhost`, which is wanted, go to: a rehearsal's never to the one of that name."""
        return vhost if self.vhosts is None else self.vhosts[vhost]

    @property
    def selection(self) -> Selection:
        """Which messages are asked for."""
        return Selection(
            start_from_scratch=self.start_from_scratch,
            all_available=self.all_available,
            queues=self.queues,
            as_of_ms=self.as_of_ms,
        )


class ForgetJob(Job, frozen=True, kw_only=True):
    """Delete what was transferred of these vhosts."""

    vhosts: list[str]


class DeleteJob(Job, frozen=True, kw_only=True):
    """Delete all that was transferred."""


class RetireArchiveJob(Job, frozen=True, kw_only=True):
    """Move all that was transferred to where nothing reads it, named by a time."""

    at_ms: int


class PositionsJob(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a promoted node how far it has outgoing logs.

    Attributes:
        endpoints: `host:port` of its stream listeners.
        logs: ids of the logs, by vhost.
    """

    endpoints: list[str]
    credentials: LoginCredentials
    logs: dict[str, int]
    tls: TlsSettings | None = None
    timeout_s: float = 10.0


class InspectJob(Job, frozen=True, kw_only=True):
    """Count all messages that were transferred."""

    spark: SparkSettings = SparkSettings()


class ContentsJob(Job, frozen=True, kw_only=True):
    """Look at what was transferred, without Spark.

    Attributes:
        with_queues: whether there is to be a row for each queue, too, of which there may be very many.
    """

    with_queues: bool = True
