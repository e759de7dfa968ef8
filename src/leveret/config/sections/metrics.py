"""Settings of metrics: the interval of samples, and the address for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.config.kinds import LOOPBACK, Flag, Integer, Ip, OptionalPort, UrlPath
from leveret.config.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Settings of metrics: the interval of samples, and the address for Prometheus."""

    interval_ms: int = setting(
        "collect_statistics_interval",
        Integer(100, 3_600_000),
        "5000",
        "Milliseconds between two samples of the message rates that the HTTP API shows.",
    )
    ip: str = setting("prometheus.tcp.ip", Ip(), LOOPBACK, "IP address of the metrics' own port.")
    port: int | None = setting(
        "prometheus.tcp.port",
        OptionalPort(),
        "none",
        "TCP port that serves the metrics without a password; RabbitMQ's is 15692. The port "
        "of the HTTP API serves them as well.",
    )
    path: str = setting("prometheus.path", UrlPath(), "/metrics", "Path of the metrics on their own port.")
    per_object: bool = setting(
        "prometheus.return_per_object_metrics",
        Flag(),
        "false",
        "Whether that path has a row for each queue, channel and connection instead of sums.",
    )
