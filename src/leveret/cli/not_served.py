"""RabbitMQ's commands without a counterpart here, each with a sentence of the reason and the alternative."""

from __future__ import annotations

from typing import Final

_NO_ERLANG: Final = "a Leveret node is a Python process without an Erlang machine"
_ETCD: Final = (
    "members, definitions and leaders are in etcd: see cluster_status, join_cluster, forget_cluster_node"
)
_BY_POLICY: Final = (
    "policies choose the nodes of a queue: set_policy with ha-mode for a classic queue, target-group-size for a "
    "quorum queue; see list_queues name leader members online, sync_queue and rebalance"
)
_RESET: Final = "stop the node and remove its data directory; then it starts as a new node"
_ONE_PROCESS: Final = "the broker is one process: leveretctl stop ends it, leveret serve starts it"
_NO_PLUGINS: Final = "a node has no plugins: the HTTP API, streams and metrics are built in"
_PLAIN_SETTINGS: Final = (
    "settings are not encrypted; keep secrets in a file that only the node's user may read"
)

_REASONS: Final = {
    _NO_ERLANG: (
        "command_line_arguments",
        "erlang_cookie_hash",
        "erlang_cookie_sources",
        "erlang_version",
        "eval",
        "eval_file",
        "exec",
        "force_gc",
        "hipe_compile",
        "maybe_stuck",
        "observer",
        "os_env",
        "remote_shell",
        "resolver_info",
        "runtime_thread_stats",
        "schema_info",
    ),
    _ETCD: (
        "change_cluster_node_type",
        "discover_peers",
        "force_boot",
        "post_upgrade",
        "rename_cluster_node",
        "update_cluster_nodes",
    ),
    _BY_POLICY: (
        "add_member",
        "delete_member",
        "grow",
        "quorum_status",
        "reclaim_quorum_memory",
        "shrink",
    ),
    "logins are counted by protocol, not by address and user": (
        "disable_auth_attempt_source_tracking",
        "enable_auth_attempt_source_tracking",
    ),
    "use log_tail_stream": ("consume_event_stream",),
    "use check_certificate_expiration; the certificates are in the files that environment names": (
        "certificates",
    ),
    "get messages by the management API, /api/queues/VHOST/NAME/get": ("peek",),
    _RESET: ("force_reset", "reset"),
    _ONE_PROCESS: ("start_app", "stop_app"),
    _PLAIN_SETTINGS: ("decode", "encode"),
    "use the tools of the node's operating system": (
        "list_network_interfaces",
        "resolve_hostname",
    ),
    _NO_PLUGINS: ("directories", "disable", "enable", "is_enabled", "list", "set"),
    "federation is not served; a second site follows by standby replication": (
        "federation_status",
        "restart_federation_link",
    ),
    "shovels are not served; run one on a RabbitMQ node, which can name this node as source or target": (
        "delete_shovel",
        "restart_shovel",
        "shovel_status",
    ),
    "use check_running, check_local_alarms and check_port_connectivity": ("node_health_check",),
}

NOT_SERVED: Final[dict[str, str]] = {name: reason for reason, names in _REASONS.items() for name in names}
