"""Both kinds of replication to another site: of definitions and of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leveret.config.kinds import Bytes, Choice, Duration, Flag, OptionalDuration, Regex
from leveret.config.sections.collect import by_name
from leveret.config.sections.tls import TlsOptions
from leveret.config.settings import branch, family, setting
from leveret.config.uris import ArchivePlace
from leveret.model.definitions import LOCAL_KINDS
from leveret.model.store_uri import is_store

_MODES: Final = Choice(("upstream", "downstream"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSyncSettings:
    """Schema replication. `locals_` has one regular expression a kind of entity."""

    operating_mode: str = setting(
        "schema_definition_sync.operating_mode",
        _MODES,
        "upstream",
        "An `upstream` serves its definitions; a `downstream` follows the definitions of its upstream.",
    )
    minimum_sync_interval_ms: int = setting(
        "schema_definition_sync.downstream.minimum_sync_interval",
        Duration(100),
        "30s",
        "Interval at which a downstream asks for changes, or the time of the last sync if that was longer.",
    )
    locals_: dict[str, str] = family(
        "schema_definition_sync.downstream.locals",
        Regex(),
        {},
        "Objects of a downstream that match are its own: a sync neither overwrites nor deletes them.",
        collect=by_name,
        names=LOCAL_KINDS,
    )
    tls: TlsOptions = branch(TlsOptions, "schema_definition_sync.downstream.ssl_options")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbySettings:
    """Message replication. Limits are per virtual host; None for no limit."""

    operating_mode: str = setting(
        "standby.replication.operating_mode",
        _MODES,
        "upstream",
        "An `upstream` collects messages for its downstreams; a `downstream` transfers the "
        "messages of its upstream.",
    )
    retention_bytes_max: int = setting(
        "standby.replication.retention.size_limit.messages",
        Bytes(1),
        "5GB",
        "Maximum size of an upstream's outgoing log of one virtual host, with the chunks that it refers to in queues' "
        "logs. A downstream whose archive of one virtual host is larger removes settled messages, the oldest first. "
        "It keeps all unsettled messages.",
    )
    retention_ms_max: int | None = setting(
        "standby.replication.retention.time_limit.messages",
        OptionalDuration(Duration(1)),
        "none",
        "Maximum time for which an upstream keeps a record in the outgoing log, from its collection on, however old "
        "its message is. A downstream removes messages that were settled longer ago; within this time its queues can "
        "be recovered as of any moment.",
    )
    truncates_transferred: bool = setting(
        "standby.replication.retention.truncate_transferred.messages",
        Flag(),
        "false",
        "Whether an upstream drops the records that all known downstreams have transferred. The limits apply as well. "
        "For a downstream that comes later, or begins again, the upstream collects the queues' messages again if all "
        "other downstreams have everything at that moment. Otherwise that downstream gets only the remaining records.",
    )
    data_dir: str | None = setting(
        "standby.replication.downstream.data_dir",
        ArchivePlace(),
        "none",
        "Place of a downstream's archive: a path, or a place of its own in an object store (`s3://BUCKET/PATH`) or an "
        "HDFS (`hdfs://NAMENODE:PORT/PATH`), with credentials and endpoint from the environment; none for `standby` "
        "in the data directory.",
    )
    shares_data_dir: bool = setting(
        "standby.replication.downstream.shared_data_dir",
        Flag(),
        "false",
        "Whether the path of a cluster's archive is one place that all nodes mount, such as an NFS, so that a virtual "
        "host that moves goes on there. A place in a store is always shared by the nodes of a cluster.",
    )
    tls: TlsOptions = branch(TlsOptions, "standby.replication.downstream.ssl_options")

    @property
    def shared_place(self) -> str:
        """The place of the archive that all nodes of a cluster share; empty if each has an archive of its own."""
        if self.data_dir is None:
            return ""
        return self.data_dir if self.shares_data_dir or is_store(self.data_dir) else ""
