"""The commands of each file of `cli/commands`, and their families in `--help`.

They are named here so that only the family of the running command is imported.
"""

from __future__ import annotations

from typing import Final

FAMILIES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "leveretctl": ("Help", ("autocomplete", "completion", "version")),
    "nodes.plugins": ("Help", ("plugins",)),
    "nodes.nodes": (
        "Nodes",
        ("environment", "report", "server_version", "status"),
    ),
    "nodes.cluster": (
        "Cluster",
        ("await_online_nodes", "cluster_status", "forget_cluster_node", "join_cluster", "rebalance"),
    ),
    "nodes.rebuilding": ("Cluster", ("describe_copy", "rebuild_cluster")),
    "nodes.mirrors": (
        "Mirrored queues",
        (
            "cancel_sync_queue",
            "check_if_cluster_has_classic_queue_mirroring_policy",
            "list_operator_policies_with_classic_queue_mirroring",
            "list_policies_with_classic_queue_mirroring",
            "remove_classic_queue_mirroring_from_policies",
            "sync_queue",
        ),
    ),
    "nodes.lifecycle": (
        "Nodes",
        (
            "await_startup",
            "check_running",
            "is_booting",
            "is_running",
            "ping",
            "shutdown",
            "stop",
            "wait",
        ),
    ),
    "access.users": (
        "Users",
        (
            "add_user",
            "authenticate_user",
            "change_password",
            "clear_password",
            "delete_user",
            "hash_password",
            "list_users",
            "set_user_tags",
        ),
    ),
    "access.user_limits": ("Users", ("clear_user_limits", "list_user_limits", "set_user_limits")),
    "access.permissions": (
        "Access control",
        (
            "clear_permissions",
            "list_permissions",
            "list_user_permissions",
            "set_permissions",
            "set_permissions_globally",
        ),
    ),
    "access.topic_permissions": (
        "Access control",
        (
            "clear_topic_permissions",
            "list_topic_permissions",
            "list_user_topic_permissions",
            "set_topic_permissions",
        ),
    ),
    "broker.vhosts": (
        "Virtual hosts",
        (
            "add_vhost",
            "delete_vhost",
            "list_vhosts",
            "restart_vhost",
            "set_vhost_tags",
            "trace_off",
            "trace_on",
            "update_vhost_metadata",
        ),
    ),
    "broker.vhost_limits": ("Virtual hosts", ("clear_vhost_limits", "list_vhost_limits", "set_vhost_limits")),
    "broker.policies": (
        "Policies",
        (
            "clear_policy",
            "list_policies",
            "list_policies_that_match",
            "set_policy",
        ),
    ),
    "broker.operator_policies": (
        "Policies",
        ("clear_operator_policy", "list_operator_policies", "set_operator_policy"),
    ),
    "broker.parameters": (
        "Runtime parameters",
        (
            "clear_global_parameter",
            "clear_parameter",
            "list_global_parameters",
            "list_parameters",
            "set_cluster_name",
            "set_global_parameter",
            "set_parameter",
        ),
    ),
    "broker.queues": (
        "Queues",
        ("delete_queue", "list_queues", "list_unresponsive_queues", "purge_queue", "restart_queue"),
    ),
    "broker.listings": (
        "Monitoring",
        ("cipher_suites", "list_bindings", "list_ciphers", "list_exchanges", "list_hashes", "tls_versions"),
    ),
    "broker.clients": (
        "Monitoring",
        (
            "close_all_connections",
            "close_all_user_connections",
            "close_connection",
            "list_channels",
            "list_connections",
            "list_consumers",
            "list_node_auth_attempt_stats",
            "reset_node_auth_attempt_metrics",
        ),
    ),
    "broker.streams": (
        "Streams",
        (
            "add_replica",
            "add_super_stream",
            "delete_replica",
            "delete_super_stream",
            "list_stream_connections",
            "list_stream_consumers",
            "list_stream_publishers",
            "restart_stream",
            "set_stream_retention_policy",
            "stream_status",
        ),
    ),
    "nodes.health": (
        "Health checks",
        (
            "alarms",
            "check_alarms",
            "check_certificate_expiration",
            "check_local_alarms",
            "check_port_connectivity",
            "check_port_listener",
            "check_protocol_listener",
            "check_virtual_hosts",
            "listeners",
        ),
    ),
    "nodes.safe_to_stop": (
        "Health checks",
        (
            "await_online_quorum_plus_one",
            "await_online_synchronized_mirror",
            "check_if_node_is_mirror_sync_critical",
            "check_if_node_is_quorum_critical",
            "check_if_safe_to_stop",
        ),
    ),
    "nodes.resources": (
        "Resources",
        ("memory_breakdown", "set_disk_free_limit", "set_vm_memory_high_watermark"),
    ),
    "nodes.logging": ("Log", ("log_location", "log_tail", "log_tail_stream", "rotate_logs", "set_log_level")),
    "nodes.maintenance": ("Maintenance", ("drain", "resume_listeners", "revive", "suspend_listeners")),
    "nodes.feature_flags": (
        "Feature flags",
        ("enable_feature_flag", "list_deprecated_features", "list_feature_flags"),
    ),
    "broker.definitions": ("Definitions", ("export_definitions", "import_definitions")),
    "replication.followers": (
        "Followers",
        (
            "check_replication",
            "list_divergent_messages",
            "list_followers",
            "promote_follower",
            "replication_status",
            "replication_verify",
            "scrub",
        ),
    ),
    "replication.schema_replication": (
        "Schema replication",
        (
            "add_schema_replication_user",
            "disable_schema_replication",
            "enable_schema_replication",
            "restart_schema_replication",
            "schema_replication_diff",
            "schema_replication_history",
            "schema_replication_status",
            "set_schema_replication_mode",
            "set_schema_replication_upstream_endpoints",
            "sync_schema_replication",
        ),
    ),
    "replication.standby_replication": (
        "Standby replication",
        (
            "connect_standby_replication_downstream",
            "delete_all_data_on_standby_replication_cluster",
            "disconnect_standby_replication_downstream",
            "display_disk_space_used_by_standby_replication_data",
            "export_standby_data",
            "inspect_local_data_available_for_standby_replication_recovery",
            "inspect_standby_downstream_metrics",
            "inspect_standby_upstream_metrics",
            "list_vhosts_available_for_standby_replication_recovery",
            "set_standby_replication_mode",
            "set_standby_replication_upstream_endpoints",
            "standby_replication_status",
        ),
    ),
    "replication.standby_promotion": (
        "Standby promotion",
        (
            "display_standby_promotion_summary",
            "promote_standby_replication_downstream",
            "rehearse_promotion",
        ),
    ),
    "replication.rejoin": ("Standby promotion", ("rejoin_as_downstream",)),
    "replication.standby_logs": (
        "Standby replication",
        (
            "delete_internal_streams_on_standby_replication_upstream_cluster",
            "delete_orphaned_data_on_standby_replication_downstream_cluster",
            "forget_standby_replication_downstream",
            "list_standby_replication_downstreams",
        ),
    ),
    "replication.warm_standby": (
        "Standby replication",
        (
            "disable_warm_standby",
            "enable_warm_standby",
            "promote_standby_replication_downstream_cluster",
            "promote_warm_standby",
            "restart_warm_standby",
        ),
    ),
}

NAMES: Final = frozenset(name for _, names in FAMILIES.values() for name in names)
