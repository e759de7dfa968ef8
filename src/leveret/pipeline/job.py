"""What a pipeline process is told, as one JSON line on its standard input.

Credentials are in it, and nowhere else: not in arguments, the environment, files or logs.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


class SparkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where Spark runs; nothing means here, on all cores.

    Attributes:
        master: as `spark-submit --master`; None leaves it to Spark's own configuration.
        conf: any of Spark's settings; they win over ours.
    """

    master: str | None = None
    conf: dict[str, str] = {}


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Who to log in as."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(username={self.username!r})"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Any task on one data directory."""

    data_dir: str

    @property
    def root(self) -> Path:
        """The data directory."""
        return Path(self.data_dir)


class TransferJob(Job, frozen=True, kw_only=True):
    """Follow an upstream until told to stop.

    Attributes:
        cluster_name: under which the upstream keeps how far this downstream is.
        endpoints: `host:port` of the upstream's stream listeners; the first one reachable is used.
        batch_bytes_max: most octets of the outgoing logs in one micro-batch.
        batch_interval_ms: least time between the beginnings of two micro-batches; fewer, larger files.
    """

    cluster_name: str
    endpoints: list[str]
    credentials: Credentials
    vhosts: list[str]
    spark: SparkSettings = SparkSettings()
    batch_bytes_max: int = 134_217_728
    batch_interval_ms: int = 400
    timeout_s: float = 5.0


class RecoverJob(Job, frozen=True, kw_only=True):
    """Publish what is unsettled to the node itself.

    Attributes:
        endpoint: `host:port` of the node's stream listener.
        start_from_scratch: settled and already recovered messages too.
        all_available: go on when it cannot be read what is settled; then all of that counts as unsettled.
        exclude: vhosts to leave alone.
    """

    endpoint: str
    credentials: Credentials
    start_from_scratch: bool = False
    all_available: bool = False
    exclude: list[str] = []
    spark: SparkSettings = SparkSettings()
    timeout_s: float = 60.0


class LookJob(Job, frozen=True, kw_only=True):
    """Look at what was transferred, without Spark."""
