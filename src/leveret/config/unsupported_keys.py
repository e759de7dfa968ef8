"""RabbitMQ's keys that Leveret does not serve, so that an operator's file gets a helpful error.

A line with such a key stops the start, as any unknown key does: a setting that is accepted without effect would be a
trap. Leveret serves a key that is both listed here and declared: declarations are checked first.
"""

from __future__ import annotations

from typing import Final

_TLS: Final = (
    "bypass_pem_cache cacertfile cacerts cert certfile ciphers client_renegotiation crl_check depth dh dhfile "
    "fail_if_no_peer_cert honor_cipher_order honor_ecc_order key keyfile log_alert log_level middlebox_comp_mode "
    "password psk_identity reuse_session reuse_sessions secure_renegotiate sni verify versions"
)
_TCP: Final = (
    "backlog buffer delay_send dontroute exit_on_close fd high_msgq_watermark high_watermark keepalive linger "
    "low_msgq_watermark low_watermark nodelay port priority recbuf send_timeout send_timeout_close sndbuf tos"
)
_HTTP: Final = (
    "compress idle_timeout inactivity_timeout ip max_keepalive port request_timeout shutdown_timeout"
)
_LOG: Final = "level formatter file rotation"

_WORDS_AFTER: Final = {
    "": (
        "anonymous_login_user anonymous_login_pass auth_backends auth_mechanisms background_gc_enabled "
        "background_gc_target_interval channel_max_per_node cluster_exchange_limit cluster_keepalive_interval "
        "cluster_name cluster_partition_handling cluster_queue_limit cluster_tags collect_statistics "
        "collect_statistics_interval connection_max consumer_max_per_channel consumer_timeout "
        "credential_validator default_limits default_pass default_permissions default_policies "
        "default_queue_type default_user default_user_tags default_users default_vhost "
        "default_worker_pool_size delegate_count deprecated_features disk_free_limit distribution erlang "
        "frame_max handshake_timeout hipe_compile initial_frame_max listeners load_definitions "
        "loopback_users max_message_size memory_monitor_interval message_interceptors "
        "message_store_shutdown_timeout mirroring_sync_batch_size mirroring_sync_max_throughput "
        "mnesia_table_loading_retry_limit mnesia_table_loading_retry_timeout motd_file net_ticktime node_tags "
        "num_acceptors password_hashing_module product proxy_protocol queue_index_embed_msgs_below "
        "queue_leader_locator queue_master_locator reverse_dns_lookups socket_writer ssl_allow_poodle_attack "
        "ssl_cert_login_from ssl_cert_login_san_index ssl_cert_login_san_type ssl_handshake_timeout "
        "sysmon_handler total_memory_available_override_value vhost_max vhost_restart_strategy "
        "vm_memory_calculation_strategy vm_memory_high_watermark vm_memory_high_watermark_paging_ratio"
    ),
    "classic_queue": "default_version",
    "definitions": "https hashing import_backend local skip_if_unchanged",
    "definitions.tls": _TLS,
    "log": "dir exchange journald syslog",
    "log.channel": _LOG,
    "log.connection": _LOG,
    "log.console": f"{_LOG} stdio use_colors color_esc_seqs",
    "log.default": _LOG,
    "log.federation": _LOG,
    "log.file": _LOG,
    "log.mirroring": _LOG,
    "log.queue": _LOG,
    "log.ra": _LOG,
    "log.upgrade": _LOG,
    "management": (
        "cors csp db_cache_multiplier disable_basic_auth disable_stats enable_queue_totals enable_uaa headers "
        "hsts http http_log_dir load_definitions login_session_timeout oauth_enabled path_prefix rates_mode "
        "restrictions sample_retention_policies uaa_client_id uaa_location"
    ),
    "management.tcp": _HTTP,
    "management.ssl": f"{_HTTP} {_TLS} backlog",
    "management.listener": "ip port server ssl",
    "management.listener.ssl_opts": _TLS,
    "management_agent": "disable_metrics_collector filter_aggregated_queue_metrics_pattern",
    "prometheus": "filter_aggregated_queue_metrics_pattern path return_per_object_metrics",
    "prometheus.tcp": _HTTP,
    "prometheus.ssl": f"{_HTTP} {_TLS} backlog",
    "quorum_queue": "compute_checksums continuous_membership property_equivalence",
    "raft": (
        "adaptive_failure_detector data_dir segment_max_entries snapshot_chunk_size wal_hibernate_after "
        "wal_max_batch_size wal_max_entries wal_max_size_bytes"
    ),
    "ssl_options": _TLS,
    "stream": (
        "advertised_host advertised_port advertised_tls_host advertised_tls_port "
        "credits_required_for_unblocking frame_max heartbeat initial_credits listeners num_acceptors "
        "read_ahead read_ahead_limit replication ssl_cert_login"
    ),
    "tcp_listen_options": _TCP,
    "stream.tcp_listen_options": _TCP,
}
_KEYS: Final = frozenset(
    f"{parent}.{word}".lstrip(".") for parent, words in _WORDS_AFTER.items() for word in words.split()
)
_FAMILIES: Final = frozenset(
    {"listeners.ssl", "stream.listeners.ssl", "ssl_options.ciphers", "ssl_options.versions"}
)
"""RabbitMQ's families of keys (with a free last word) that resemble others."""

_PLUGINS: Final = {
    "amqp1_0": "AMQP 1.0 serves the schema link only",
    "amqp10": "AMQP 1.0 serves the schema link only",
    "auth_backend_ldap": "users are the node's own",
    "auth_backend_oauth2": "users are the node's own",
    "auth_cache": "users are the node's own",
    "auth_http": "users are the node's own",
    "auth_ldap": "users are the node's own",
    "auth_oauth2": "users are the node's own",
    "cluster_formation": "nodes of a cluster find each other through cluster.etcd.endpoints",
    "federation": "there is no federation plugin",
    "mqtt": "MQTT is not served",
    "shovel": "there is no shovel plugin",
    "stomp": "STOMP is not served",
    "trust_store": "there is no trust store plugin",
    "web_mqtt": "MQTT is not served",
    "web_stomp": "STOMP is not served",
}


def plugin_reason(name: str) -> str:
    """Return why Leveret has no plugin of this name of RabbitMQ's."""
    short = name.removeprefix("rabbitmq_")
    known = next((reason for plugin, reason in _PLUGINS.items() if short.startswith(plugin)), None)
    return known or "Leveret has neither this plugin nor a replacement"


def is_unsupported_key(key: str) -> bool:
    """Return whether the key is certainly RabbitMQ's: one of its keys, or a key of a plugin that Leveret lacks."""
    return key in _KEYS or key.rpartition(".")[0] in _FAMILIES or key.partition(".")[0] in _PLUGINS


def unsupported_key_advice(key: str) -> str | None:
    """Return the advice for an undeclared key, if the key or a prefix of it is RabbitMQ's; otherwise None."""
    plugin = key.partition(".")[0]
    if plugin in _PLUGINS:
        return f"it is a setting of RabbitMQ, and {_PLUGINS[plugin]}: remove the line"
    words = key.split(".")
    if any(".".join(words[:count]) in _KEYS for count in range(1, len(words) + 1)):
        return "it is a setting of RabbitMQ that Leveret does not support: remove the line"
    return None
