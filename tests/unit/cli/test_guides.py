"""The lines of the guides that Leveret follows, as they are printed there: each is understood, or refused by name."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from leveret.cli.commands.nodes.plugins import BUILT_IN
from leveret.cli.ctl import build_app, common_options_first, wanted_command
from leveret.cli.families import NAMES
from leveret.cli.program_aliases import (
    OPERATOR_PROGRAMS,
    PLUGINS,
    operator_arguments,
    option_without_value,
    program_of,
    server_arguments,
)
from leveret.cli.server import app
from leveret.config import gather

pytestmark = pytest.mark.process

SCHEMA = (
    '{"endpoints": ["a.rabbitmq.eu-1.local:5672","b.rabbitmq.eu-1.local:5672","c.rabbitmq.eu-1.local:5672"], '
    '"username": "schema-replicator", "password": "s3kRe7"}'
)
STANDBY = SCHEMA.replace("5672", "5552").replace("schema-replicator", "offsite-replicator")
MIRRORING = r"""
rabbitmqctl list_queues name policy pid mirror_pids
rabbitmq-diagnostics check_if_cluster_has_classic_queue_mirroring_policy
rabbitmq-diagnostics list_policies_with_classic_queue_mirroring -s --formatter=pretty_table
rabbitmqctl set_policy ha-two "^two\." '{"ha-mode":"exactly","ha-params":2,"ha-sync-mode":"automatic"}'
rabbitmqctl set_policy ha-all "^ha\." '{"ha-mode":"all"}'
rabbitmqctl set_policy ha-nodes "^nodes\." '{"ha-mode":"nodes","ha-params":["rabbit@nodeA", "rabbit@nodeB"]}'
rabbitmqctl list_queues name mirror_pids synchronised_mirror_pids
rabbitmqctl sync_queue "{name}"
rabbitmqctl cancel_sync_queue "{name}"
""".strip().splitlines()
REPLICATION = rf"""
rabbitmq-plugins enable rabbitmq_schema_definition_sync --offline
rabbitmq-plugins enable rabbitmq_standby_replication --offline
rabbitmqctl add_vhost rabbitmq_schema_definition_sync
rabbitmqctl add_schema_replication_user "schema-replicator" "s3kRe7"
rabbitmqctl set_schema_replication_upstream_endpoints '{SCHEMA}'
rabbitmqctl schema_replication_status
rabbitmqctl disable_schema_replication
rabbitmqctl enable_schema_replication
rabbitmqctl restart_schema_replication
rabbitmqctl set_schema_replication_mode upstream
rabbitmqctl disconnect_standby_replication_downstream
rabbitmqctl connect_standby_replication_downstream
rabbitmqctl set_standby_replication_upstream_endpoints '{STANDBY}'
rabbitmqctl add_vhost "vhost1" --tags "standby_replication"
rabbitmqctl set_policy --vhost "vhost1" osr "^.*" '{{"remote-dc-replicate": true}}' --apply-to "queues"
rabbitmq-diagnostics inspect_standby_upstream_metrics
rabbitmq-diagnostics inspect_standby_downstream_metrics
rabbitmqctl display_disk_space_used_by_standby_replication_data
rabbitmqctl list_vhosts_available_for_standby_replication_recovery
rabbitmqctl promote_standby_replication_downstream
rabbitmqctl promote_standby_replication_downstream --start-from-scratch
rabbitmqctl promote_standby_replication_downstream --all-available --exclude-virtual-hosts "vhost1,vhost2"
rabbitmqctl promote_standby_replication_downstream --exclude-virtual-hosts \"vhost1,vhost2\"
rabbitmqctl display_standby_promotion_summary
rabbitmqctl delete_orphaned_data_on_standby_replication_downstream_cluster
rabbitmqctl delete_all_data_on_standby_replication_cluster
rabbitmqctl delete_internal_streams_on_standby_replication_upstream_cluster
rabbitmq-diagnostics inspect_local_data_available_for_standby_replication_recovery
""".strip().splitlines()


def parsed(line: str) -> str:
    """The command of a line whose options and arguments are all known and allowed."""
    program, *words = shlex.split(line)
    called, arguments = operator_arguments(f"/usr/sbin/{program}", words)
    assert called == program
    arguments = common_options_first(arguments)
    name = wanted_command(arguments)
    assert name in NAMES
    group = typer.main.get_command(build_app(name))
    assert isinstance(group, typer.core.TyperGroup)
    with group.make_context(program, list(arguments)) as context:
        rest = [*context._protected_args, *context.args]
        command = group.get_command(context, rest[0])
        assert command is not None
        with command.make_context(rest[0], rest[1:], parent=context):
            return rest[0]


@pytest.mark.parametrize("line", [*MIRRORING, *REPLICATION])
def test_a_line_of_the_guides_is_understood(line: str) -> None:
    assert parsed(line)


def called(program: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the program by a link of another name, as packaging makes it."""
    own = "leveret" if program == "lavinmq" else "leveretctl"
    (folder / program).symlink_to(Path(sys.executable).parent / own)
    return subprocess.run(
        [folder / program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={key: text for key, text in os.environ.items() if not key.startswith("LEVERET_")},
    )


@pytest.mark.parametrize("program", ["lavinmqctl", PLUGINS])
def test_a_link_of_another_name_is_that_program(program: str, tmp_path: Path) -> None:
    ended = called(program, "no_such_thing", folder=tmp_path)
    assert ended.returncode == 64
    assert ended.stderr.startswith(f"{program}: ")


def test_a_plugin_that_is_built_in_may_be_enabled_and_another_one_is_refused(tmp_path: Path) -> None:
    enabled = called(PLUGINS, "enable", *BUILT_IN, "--offline", folder=tmp_path)
    assert (enabled.returncode, enabled.stderr) == (0, "")
    assert [line.split("\t") for line in enabled.stdout.splitlines()[1:]] == [
        [name, "built in"] for name in BUILT_IN
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["enable", "rabbitmq_mqtt"], "rabbitmq_mqtt: MQTT is not served; nothing was changed"),
        (
            ["enable", BUILT_IN[0], "rabbitmq_shovel"],
            "rabbitmq_shovel: there is no shovel plugin; nothing was changed",
        ),
        (["set", "mine"], "mine: Leveret has neither this plugin nor a replacement; nothing was changed"),
        (["disable", "rabbitmq_stream"], "rabbitmq_stream is built in and cannot be disabled"),
        (["enable"], "plugins enable: name one or more plugins"),
    ],
)
def test_what_cannot_be_done_with_plugins_is_said(arguments: list[str], error: str, tmp_path: Path) -> None:
    ended = called(PLUGINS, *arguments, folder=tmp_path)
    assert (ended.returncode, ended.stderr, ended.stdout) == (64, f"{PLUGINS}: {error}\n", "")


def test_a_name_that_is_none_of_theirs_is_the_program_s_own() -> None:
    assert program_of("/usr/bin/python", "leveretctl", OPERATOR_PROGRAMS) == "leveretctl"


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("--data-dir d --follow tcp://localhost:5679", "serve --data-dir d --follow tcp://localhost:5679"),
        ("serve --data-dir d", "serve --data-dir d"),
        ("--version", "--version"),
        ("--help", "--help"),
        ("", ""),
    ],
)
def test_the_server_serves_where_nothing_else_is_said(line: str, meant: str) -> None:
    assert server_arguments(line.split()) == meant.split()
    assert app.registered_commands


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("--data-dir d --replication-bind --replication-port 5679", "--replication-bind"),
        ("--data-dir d --replication-port 5679 --replication-bind", "--replication-bind"),
        ("--replication-bind 127.0.0.1 --replication-port 5679", None),
        ("--replication-bind=127.0.0.1 --replication-port 5679", None),
    ],
)
def test_an_option_without_its_value_is_noticed(line: str, option: str | None) -> None:
    assert option_without_value(line.split(), {"--replication-bind", "--replication-port"}) == option


def test_a_leader_of_the_guide_is_told_that_its_address_is_missing(tmp_path: Path) -> None:
    line = "--replication-bind --replication-port 5679"
    ended = called("lavinmq", "--data-dir", str(tmp_path / "leader"), *line.split(), folder=tmp_path)
    assert ended.returncode == 64
    assert ended.stderr.startswith("lavinmq: --replication-bind: the address is missing")
    assert not (tmp_path / "leader").exists()


def test_names_that_a_file_of_the_guides_sets_twice_are_all_kept(tmp_path: Path) -> None:
    key = "schema_definition_sync.downstream.locals.global_parameters"
    file = tmp_path / "rabbitmq.conf"
    file.write_text(f"{key} = ^some-param\n{key} = ^standby\nlisteners.tcp.1 = 1\nlisteners.tcp.1 = 2\n")
    given = gather(file)
    assert given[key] == ("(?:^some-param)|(?:^standby)", f"{file}:1, {file}:2")
    assert given["listeners.tcp.1"].text == "2", "of anything else the last line holds, as with RabbitMQ"
