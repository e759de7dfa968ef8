"""rabbitmqctl and leveretctl after the same setup: the same words, columns, keys and exit statuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.brokers import Broker

pytestmark = pytest.mark.conformance


def shown(broker: Broker, *arguments: str) -> str:
    """What the command prints, all lines."""
    return str(broker.ctl(*arguments).stdout)


def document(broker: Broker, *arguments: str) -> Any:
    return json.loads(shown(broker, *arguments, "--formatter", "json"))


def status(broker: Broker, *arguments: str) -> int:
    return int(broker.ctl(*arguments, check=False).returncode)


@pytest.fixture
def vhost(broker: Broker, name: str) -> str:
    """A vhost of its own, with a queue that holds two messages and a binding."""
    broker.add_vhost(name)
    with broker.connect(vhost=name) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True, arguments={"x-max-length": 10})
        channel.queue_bind("orders", "amq.topic", "eu.#", {"k": "v"})
        channel.confirm_delivery()
        for _ in range(2):
            channel.basic_publish("", "orders", b"x")
    return name


def test_queues_are_listed_under_a_banner_and_a_header(broker: Broker, vhost: str) -> None:
    assert shown(broker, "list_queues", "-p", vhost) == (
        f"Timeout: 60.0 seconds ...\nListing queues for vhost {vhost} ...\nname\tmessages\norders\t2\n"
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-q"], "name\tmessages\norders\t2\n"),
        (["--quiet"], "name\tmessages\norders\t2\n"),
        (["-s"], "orders\t2\n"),
        (["--silent"], "orders\t2\n"),
        (["-q", "--no-table-headers"], "orders\t2\n"),
        (["--formatter", "csv"], '"name","messages"\n"orders","2"\n'),
        (["-s", "--formatter", "csv"], '"name","messages"\n"orders","2"\n'),
        (["--online", "-q"], "name\tmessages\norders\t2\n"),
        (["--local", "-q"], "name\tmessages\norders\t2\n"),
        (["--offline", "-q"], ""),
    ],
)
def test_a_listing_is_as_loud_as_it_is_asked_to_be(
    broker: Broker, vhost: str, options: list[str], expected: str
) -> None:
    assert shown(broker, "list_queues", "-p", vhost, *options) == expected


def test_columns_are_those_named_in_their_order(broker: Broker, vhost: str) -> None:
    columns = ["name", "durable", "arguments", "messages_ready", "type", "state", "policy"]
    assert shown(broker, "-q", "list_queues", "-p", vhost, *columns) == (
        "name\tdurable\targuments\tmessages_ready\ttype\tstate\tpolicy\n"
        'orders\ttrue\t[{"x-max-length",10}]\t2\tclassic\trunning\t\n'
    )
    assert shown(broker, "-q", "list_queues", "-p", vhost, "messages,name") == "messages\tname\n2\torders\n"


QUEUE_ITEMS = [
    "name",
    "durable",
    "auto_delete",
    "arguments",
    "policy",
    "pid",
    "owner_pid",
    "exclusive",
    "exclusive_consumer_pid",
    "exclusive_consumer_tag",
    "messages_ready",
    "messages_unacknowledged",
    "messages",
    "messages_ready_ram",
    "messages_unacknowledged_ram",
    "messages_ram",
    "messages_persistent",
    "message_bytes",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
    "message_bytes_ram",
    "message_bytes_persistent",
    "head_message_timestamp",
    "disk_reads",
    "disk_writes",
    "consumers",
    "consumer_utilisation",
    "consumer_capacity",
    "memory",
    "slave_pids",
    "synchronised_slave_pids",
    "state",
    "type",
    "leader",
    "members",
    "online",
]


def test_every_info_item_of_a_queue_is_served(broker: Broker, vhost: str) -> None:
    [queue] = document(broker, "list_queues", "-p", vhost, *QUEUE_ITEMS)
    assert list(queue) == QUEUE_ITEMS
    assert None not in queue.values()
    known = ("name", "durable", "messages", "consumers", "state", "policy", "head_message_timestamp")
    assert [queue[key] for key in known] == ["orders", True, 2, 0, "running", "", ""]


def test_exchanges_and_bindings_are_listed(broker: Broker, vhost: str) -> None:
    banner, header, *rows = shown(broker, "list_exchanges", "-p", vhost).splitlines()
    assert (banner, header) == (f"Listing exchanges for vhost {vhost} ...", "name\ttype")
    assert {"amq.topic\ttopic", "\tdirect", "amq.match\theaders"} < set(rows)
    banner, header, *rows = shown(broker, "list_bindings", "-p", vhost).splitlines()
    assert banner == f"Listing bindings for vhost {vhost}..."
    assert header == "source_name\tsource_kind\tdestination_name\tdestination_kind\trouting_key\targuments"
    assert sorted(rows) == [
        "\texchange\torders\tqueue\torders\t[]",
        'amq.topic\texchange\torders\tqueue\teu.#\t[{"k","v"}]',
    ]


def test_who_is_connected_is_listed(broker: Broker, vhost: str) -> None:
    with broker.connect(vhost=vhost) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=7)
        channel.basic_consume("orders", lambda *_: None, consumer_tag="me")
        found = document(broker, "list_connections", "user", "vhost", "state", "channels", "auth_mechanism")
        assert {
            "user": "guest",
            "vhost": vhost,
            "state": "running",
            "channels": 1,
            "auth_mechanism": "PLAIN",
        } in found
        channels = document(broker, "list_channels", "vhost", "consumer_count", "prefetch_count", "confirm")
        assert {"vhost": vhost, "consumer_count": 1, "prefetch_count": 7, "confirm": False} in channels
        header, row = shown(broker, "-q", "list_consumers", "-p", vhost).splitlines()
        assert header.split("\t") == [
            "queue_name",
            "channel_pid",
            "consumer_tag",
            "ack_required",
            "prefetch_count",
            "active",
            "arguments",
        ]
        queue, pid, *rest = row.split("\t")
        assert (queue, rest) == ("orders", ["me", "true", "7", "true", "[]"])
        lines = shown(broker, "-s", "list_channels", "vhost", "pid").splitlines()
        [channel_pid] = [line.split("\t")[1] for line in lines if line.startswith(f"{vhost}\t")]
        assert channel_pid == pid
        assert " " not in pid


def test_a_connection_is_closed_by_the_pid_that_is_listed(broker: Broker, vhost: str) -> None:
    with broker.connect(vhost=vhost) as connection:
        lines = shown(broker, "-s", "list_connections", "vhost", "pid").splitlines()
        [pid] = [line.split("\t")[1] for line in lines if line.startswith(f"{vhost}\t")]
        assert shown(broker, "close_connection", pid, "bye") == f"Closing connection {pid}, reason: bye...\n"
        with pytest.raises(Exception, match="bye"):
            connection.process_data_events(10)


def test_connections_of_a_vhost_are_closed_and_counted(broker: Broker, vhost: str) -> None:
    with broker.connect(vhost=vhost) as connection:
        assert shown(broker, "close_all_connections", "--vhost", vhost, "bye") == (
            f"Closing all connections in vhost {vhost}, reason: bye...\nClosed 1 connections\n"
        )
        with pytest.raises(Exception, match="bye"):
            connection.process_data_events(10)


def test_users_and_their_tags(broker: Broker, name: str) -> None:
    assert shown(broker, "add_user", name, "p").startswith(f'Adding user "{name}" ...\nDone. Don\'t forget')
    assert shown(broker, "set_user_tags", name, "monitoring", "management") == (
        f'Setting tags for user "{name}" to [monitoring, management] ...\n'
    )
    assert f"{name}\t[monitoring, management]" in shown(broker, "list_users").splitlines()
    assert {"user": name, "tags": ["monitoring", "management"]} in document(broker, "list_users")
    assert shown(broker, "authenticate_user", name, "p") == f'Authenticating user "{name}" ...\nSuccess\n'
    assert status(broker, "authenticate_user", name, "wrong") == 65
    assert shown(broker, "change_password", name, "q") == f'Changing password for user "{name}" ...\n'
    assert shown(broker, "clear_password", name) == f'Clearing password for user "{name}" ...\n'
    assert status(broker, "authenticate_user", name, "q") == 65
    assert shown(broker, "delete_user", name) == f'Deleting user "{name}" ...\n'


def test_permissions_of_both_kinds(broker: Broker, vhost: str) -> None:
    broker.ctl("set_permissions", "-p", vhost, "guest", "^a", "^b", "^c")
    assert shown(broker, "list_permissions", "-p", vhost) == (
        f'Listing permissions for vhost "{vhost}" ...\nuser\tconfigure\twrite\tread\nguest\t^a\t^b\t^c\n'
    )
    assert f"{vhost}\t^a\t^b\t^c" in shown(broker, "list_user_permissions", "guest").splitlines()
    broker.ctl("set_topic_permissions", "-p", vhost, "guest", "amq.topic", "^w", "^r")
    assert shown(broker, "list_topic_permissions", "-p", vhost) == (
        f'Listing topic permissions for vhost "{vhost}" ...\nuser\texchange\twrite\tread\nguest\tamq.topic\t^w\t^r\n'
    )
    broker.ctl("clear_topic_permissions", "-p", vhost, "guest", "amq.topic")
    broker.ctl("clear_permissions", "-p", vhost, "guest")
    assert document(broker, "list_topic_permissions", "-p", vhost) == []
    assert document(broker, "list_permissions", "-p", vhost) == []


def test_policies_are_listed_with_their_definition_as_json(broker: Broker, vhost: str) -> None:
    definition = '{"max-length":5}'
    assert shown(
        broker, "set_policy", "-p", vhost, "p", "^o", definition, "--priority", "3", "--apply-to", "queues"
    ) == (
        f'Setting policy "p" for pattern "^o" to "{definition}" with priority "3" for vhost "{vhost}" ...\n'
    )
    assert shown(broker, "list_policies", "-p", vhost) == (
        f'Listing policies for vhost "{vhost}" ...\nvhost\tname\tpattern\tapply-to\tdefinition\tpriority\n'
        f"{vhost}\tp\t^o\tqueues\t{definition}\t3\n"
    )
    [policy] = document(broker, "list_policies", "-p", vhost)
    assert (policy["definition"], policy["priority"]) == (definition, 3)
    assert shown(broker, "-s", "list_queues", "-p", vhost, "name", "policy") == "orders\tp\n"
    assert shown(broker, "clear_policy", "-p", vhost, "p") == f'Clearing policy "p" on vhost "{vhost}" ...\n'


def test_operator_policies(broker: Broker, vhost: str) -> None:
    definition = '{"max-length":5}'
    assert shown(broker, "set_operator_policy", "-p", vhost, "p", "^o", definition) == (
        f'Setting operator policy override "p" for pattern "^o" to "{definition}" with priority "0" '
        f'for vhost "{vhost}" ...\n'
    )
    assert shown(broker, "-q", "list_operator_policies", "-p", vhost).splitlines()[1] == (
        f"{vhost}\tp\t^o\tall\t{definition}\t0"
    )
    broker.ctl("clear_operator_policy", "-p", vhost, "p")
    assert status(broker, "clear_operator_policy", "-p", vhost, "p") == 69


def test_limits_of_a_vhost(broker: Broker, vhost: str) -> None:
    broker.ctl("set_vhost_limits", "-p", vhost, '{"max-queues":5}')
    assert shown(broker, "list_vhost_limits", "-p", vhost) == (
        f'Listing limits for vhost "{vhost}" ...\n{{"max-queues":5}}\n'
    )
    assert {"vhost": vhost, "limits": '{"max-queues":5}'} in document(broker, "list_vhost_limits", "--global")
    broker.ctl("clear_vhost_limits", "-p", vhost)
    assert status(broker, "clear_vhost_limits", "-p", vhost) == 69


def test_limits_of_a_user(broker: Broker, name: str) -> None:
    broker.add_user(name, "p")
    broker.ctl("set_user_limits", name, '{"max-connections":5}')
    assert shown(broker, "list_user_limits", "--user", name) == (
        f'Listing limits for user "{name}" ...\n{{"max-connections":5}}\n'
    )
    assert {"user": name, "limits": '{"max-connections":5}'} in document(
        broker, "list_user_limits", "--global"
    )
    assert shown(broker, "clear_user_limits", name, "all") == f'Clearing all limits for user "{name}" ...\n'
    assert shown(broker, "-q", "list_user_limits", "--user", name) == "{}\n"


def test_parameters(broker: Broker, vhost: str, name: str) -> None:
    broker.ctl("set_parameter", "-p", vhost, "vhost-limits", "limits", '{"max-queues":9}')
    assert shown(broker, "list_parameters", "-p", vhost) == (
        f'Listing runtime parameters for vhost "{vhost}" ...\ncomponent\tname\tvalue\n'
        'vhost-limits\tlimits\t{"max-queues":9}\n'
    )
    broker.ctl("clear_parameter", "-p", vhost, "vhost-limits", "limits")
    broker.ctl("set_global_parameter", name, '{"a":1}')
    assert {"name": name, "value": '{"a":1}'} in document(broker, "list_global_parameters")
    broker.ctl("clear_global_parameter", name)


def test_vhosts_with_description_and_tags(broker: Broker, name: str) -> None:
    assert shown(broker, "add_vhost", name, "--description", "d") == f'Adding vhost "{name}" ...\n'
    assert shown(broker, "set_vhost_tags", name, "x", "y") == (
        f'Setting tags for virtual host "{name}" to [x, y] ...\n'
    )
    assert {"name": name, "description": "d", "tags": ["x", "y"]} in document(
        broker, "list_vhosts", "name", "description", "tags"
    )
    assert name in shown(broker, "-s", "list_vhosts").splitlines()
    assert shown(broker, "delete_vhost", name) == f'Deleting vhost "{name}" ...\n'


def test_a_queue_is_purged_and_deleted(broker: Broker, vhost: str) -> None:
    assert status(broker, "delete_queue", "-p", vhost, "orders", "--if-empty") == 64
    assert shown(broker, "purge_queue", "-p", vhost, "orders") == (
        f"Purging queue 'orders' in vhost '{vhost}' ...\n"
    )
    assert shown(broker, "delete_queue", "-p", vhost, "orders", "-e", "-u") == (
        f"Deleting queue 'orders' on vhost '{vhost}' if queue is empty and if queue is unused ...\n"
        "Queue was successfully deleted with 0 ready messages\n"
    )


def test_a_column_that_is_not_known_is_told_before_anything_is_listed(broker: Broker) -> None:
    ended = broker.ctl("list_exchanges", "bogus", check=False)
    assert (ended.returncode, ended.stdout) == (64, "")
    assert "Info key(s) bogus are not supported" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nosuch_command"], 64),
        (["add_user"], 64),
        (["add_user", "a", "b", "c"], 64),
        (["list_users", "extra"], 64),
        (["list_queues", "--bogus"], 64),
        (["list_queues", "-t", "abc"], 64),
        (["list_queues", "bogus"], 64),
        (["list_exchanges", "bogus"], 64),
        (["list_bindings", "bogus"], 64),
        (["list_connections", "bogus"], 64),
        (["list_channels", "bogus"], 64),
        (["list_consumers", "bogus"], 64),
        (["list_vhosts", "bogus"], 64),
        (["add_user", "guest", "p"], 70),
        (["delete_user", "nosuch"], 67),
        (["change_password", "nosuch", "p"], 67),
        (["set_user_tags", "nosuch", "a"], 67),
        (["set_permissions", "nosuch", ".*", ".*", ".*"], 67),
        (["set_permissions", "guest", "*a", ".*", ".*"], 69),
        (["set_permissions", "-p", "nosuch", "guest", ".*", ".*", ".*"], 69),
        (["clear_permissions", "nosuch"], 67),
        (["set_topic_permissions", "nosuch", "amq.topic", ".*", ".*"], 67),
        (["clear_topic_permissions", "nosuch"], 67),
        (["list_user_permissions", "nosuch"], 69),
        (["list_user_topic_permissions", "nosuch"], 69),
        (["authenticate_user", "nosuch", "p"], 65),
        (["clear_password", "nosuch"], 69),
        (["list_user_limits", "--user", "nosuch"], 69),
        (["set_user_limits", "nosuch", '{"max-connections":1}'], 69),
        (["set_user_limits", "guest", '{"bogus":1}'], 69),
        (["list_permissions", "-p", "nosuch"], 65),
        (["list_topic_permissions", "-p", "nosuch"], 65),
        (["list_policies", "-p", "nosuch"], 65),
        (["list_operator_policies", "-p", "nosuch"], 65),
        (["list_parameters", "-p", "nosuch"], 65),
        (["list_vhost_limits", "-p", "nosuch"], 65),
        (["set_vhost_limits", "-p", "nosuch", '{"max-queues":1}'], 65),
        (["set_vhost_limits", '{"bogus":1}'], 69),
        (["delete_vhost", "nosuch"], 65),
        (["set_vhost_tags", "nosuch", "a"], 65),
        (["restart_vhost", "-p", "nosuch"], 70),
        (["set_policy", "-p", "nosuch", "p", "q", '{"max-length":1}'], 65),
        (["set_policy", "p", "q", "not json"], 69),
        (["set_policy", "p", "*q", '{"max-length":1}'], 69),
        (["set_policy", "p", "q", '{"bogus":1}'], 69),
        (["set_policy", "p", "q", '{"max-length":"x"}'], 69),
        (["set_policy", "p", "q", '{"max-length":1}', "--apply-to", "bogus"], 69),
        (["set_policy", "p", "q", '{"max-length":1}', "--priority", "x"], 64),
        (["clear_policy", "nosuch"], 69),
        (["set_parameter", "nosuch", "n", "1"], 69),
        (["clear_parameter", "nosuch", "n"], 69),
        (["set_global_parameter", "g", "not json"], 69),
        (["clear_global_parameter", "nosuch"], 69),
        (["purge_queue", "nosuch"], 69),
        (["delete_queue", "nosuch"], 64),
        (["close_connection", "<1.2.3>", "bye"], 69),
        (["close_all_user_connections", "nosuch", "bye"], 0),
        (["import_definitions", "/nonexistent"], 65),
        (["set_log_level", "bogus"], 69),
        (["set_vm_memory_high_watermark", "7"], 65),
        (["enable_feature_flag", "bogus"], 64),
        (["await_online_nodes", "2", "--timeout", "1"], 70),
        (["add_vhost", "v4", "--default-queue-type", "bogus"], 69),
    ],
    ids=lambda value: "_".join(value)[:60] if isinstance(value, list) else str(value),
)
def test_a_command_ends_with_the_status_of_its_outcome(
    broker: Broker, arguments: list[str], expected: int
) -> None:
    assert status(broker, *arguments) == expected
