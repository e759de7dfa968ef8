from __future__ import annotations

import pytest

from leveret.cli.families import NAMES
from leveret.cli.not_served import NOT_SERVED

_NAMES = """
    add_member add_user add_vhost alarms authenticate_user autocomplete await_online_nodes
    await_online_quorum_plus_one await_online_synchronized_mirror await_startup cancel_sync_queue
    certificates change_cluster_node_type change_password check_alarms check_certificate_expiration
    check_if_node_is_mirror_sync_critical check_if_node_is_quorum_critical check_local_alarms
    check_port_connectivity check_port_listener check_protocol_listener check_running
    check_virtual_hosts cipher_suites clear_global_parameter clear_operator_policy clear_parameter
    clear_password clear_permissions clear_policy clear_topic_permissions clear_user_limits
    clear_vhost_limits close_all_connections close_all_user_connections close_connection cluster_status
    command_line_arguments consume_event_stream decode delete_member delete_queue delete_user
    delete_vhost disable_auth_attempt_source_tracking discover_peers drain
    enable_auth_attempt_source_tracking enable_feature_flag encode environment erlang_cookie_hash
    erlang_cookie_sources erlang_version eval eval_file exec export_definitions force_boot force_gc
    force_reset forget_cluster_node grow help hipe_compile import_definitions is_booting is_running
    join_cluster list_bindings list_channels list_ciphers list_connections list_consumers
    list_exchanges list_feature_flags list_global_parameters list_hashes list_network_interfaces
    list_node_auth_attempt_stats list_operator_policies list_parameters list_permissions list_policies
    list_queues list_topic_permissions list_unresponsive_queues list_user_limits list_user_permissions
    list_user_topic_permissions list_users list_vhost_limits list_vhosts listeners log_location
    log_tail log_tail_stream maybe_stuck memory_breakdown node_health_check observer os_env peek ping
    post_upgrade purge_queue quorum_status rebalance reclaim_quorum_memory remote_shell
    rename_cluster_node report reset reset_node_auth_attempt_metrics resolve_hostname resolver_info
    restart_vhost resume_listeners revive rotate_logs runtime_thread_stats schema_info server_version
    set_cluster_name set_disk_free_limit set_global_parameter set_log_level set_operator_policy
    set_parameter set_permissions set_policy set_topic_permissions set_user_limits set_user_tags
    set_vhost_limits set_vhost_tags set_vm_memory_high_watermark shrink shutdown start_app status stop
    stop_app stream_status suspend_listeners sync_queue tls_versions trace_off trace_on
    update_cluster_nodes version wait
"""
RABBITMQ = frozenset(_NAMES.split())
"""The commands of rabbitmqctl, rabbitmq-diagnostics, -queues, -streams and -upgrade of 3.10."""


def test_every_command_of_rabbitmq_is_served_or_there_is_a_reason_why_not() -> None:
    assert RABBITMQ - NAMES - set(NOT_SERVED) == {"help"}


def test_no_command_is_both_served_and_not() -> None:
    assert not NAMES & set(NOT_SERVED)


def test_a_reason_is_one_sentence() -> None:
    for name, reason in NOT_SERVED.items():
        assert reason[0].islower(), name
        assert not reason.endswith("."), name


@pytest.mark.parametrize("name", ["add_member", "delete_member", "grow", "quorum_status", "shrink"])
def test_members_of_a_group_are_chosen_by_its_policy(name: str) -> None:
    assert NOT_SERVED[name].startswith("policies choose the nodes of a queue")
