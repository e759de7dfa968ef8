"""The frozen tree of a node's settings; callers pass slices of it down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from leveret.config.kinds import HostText, NodeName
from leveret.config.sections.access import AccessSettings
from leveret.config.sections.cluster import Cluster
from leveret.config.sections.definitions import DefinitionsSettings
from leveret.config.sections.etcd import EtcdOptions
from leveret.config.sections.followers import Followers
from leveret.config.sections.limits import Amqp, ObjectLimits, Watermarks
from leveret.config.sections.listeners import Listeners
from leveret.config.sections.logging import LogSettings
from leveret.config.sections.management import Management
from leveret.config.sections.metrics import Metrics
from leveret.config.sections.process import Process
from leveret.config.sections.replication import SchemaSyncSettings, StandbySettings
from leveret.config.sections.spark import Spark
from leveret.config.sections.storage import Storage
from leveret.config.sections.streams import Streams
from leveret.config.sections.tls import CertificateLogin, TlsOptions
from leveret.config.settings import branch, setting, settings_of

_NAME: Final = "leveret@$HOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of a node.

    Attributes:
        files: the configuration files that were read, as absolute paths.
    """

    node_name: str = setting("nodename", NodeName(), _NAME, "This node's name.")
    cluster_name: str = setting(
        "cluster_name",
        HostText(),
        _NAME,
        "Name of the cluster, as clients and other sites see it. Give each site a name of its own: an upstream lists "
        "its downstreams by it, and warns if two have the same one (`downstream_name_used_twice`).",
    )
    listeners: Listeners = field(default_factory=Listeners)
    management: Management = field(default_factory=Management)
    metrics: Metrics = field(default_factory=Metrics)
    access: AccessSettings = field(default_factory=AccessSettings)
    definitions: DefinitionsSettings = field(default_factory=DefinitionsSettings)
    amqp: Amqp = field(default_factory=Amqp)
    objects: ObjectLimits = field(default_factory=ObjectLimits)
    streams: Streams = field(default_factory=Streams)
    tls: TlsOptions = branch(TlsOptions, "ssl_options")
    certificate_login: CertificateLogin = field(default_factory=CertificateLogin)
    watermarks: Watermarks = field(default_factory=Watermarks)
    storage: Storage = field(default_factory=Storage)
    process: Process = field(default_factory=Process)
    log: LogSettings = field(default_factory=LogSettings)
    followers: Followers = field(default_factory=Followers)
    cluster: Cluster = field(default_factory=Cluster)
    etcd: EtcdOptions = field(default_factory=EtcdOptions)
    schema_sync: SchemaSyncSettings = field(default_factory=SchemaSyncSettings)
    standby: StandbySettings = field(default_factory=StandbySettings)
    spark: Spark = field(default_factory=Spark)
    files: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_elected(self) -> bool:
        """Return whether etcd elects this node as leader or follower: it has an etcd and no cluster."""
        return bool(self.etcd.endpoints) and not self.cluster.is_member


SETTINGS: Final = list(settings_of(Config))
