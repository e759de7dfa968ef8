from __future__ import annotations

import subprocess
import sys

import pytest

from leveret.cli.ctl import build_app, common_options_first, load_family, wanted_command
from leveret.cli.families import FAMILIES, NAMES
from leveret.cli.not_served import NOT_SERVED
from leveret.testing.servers import warm_start
from tests.unit.cli.test_server import WITHOUT_SETTINGS

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["list_users"], ["list_users"]),
        (["list_users", "-q"], ["-q", "list_users"]),
        (["list_queues", "-p", "v", "name"], ["-p", "v", "list_queues", "name"]),
        (["list_queues", "--vhost=v", "name"], ["--vhost=v", "list_queues", "name"]),
        (
            ["set_policy", "a", "b", "{}", "--apply-to", "queues"],
            ["set_policy", "a", "b", "{}", "--apply-to", "queues"],
        ),
        (["add_user", "--", "-q", "-p"], ["add_user", "--", "-q", "-p"]),
        (["list_users", "--formatter"], ["list_users", "--formatter"]),
        (["list_users", "-n", "a@b", "-t", "5", "-l"], ["-n", "a@b", "-t", "5", "-l", "list_users"]),
    ],
)
def test_options_of_all_commands_may_stand_behind_the_command(given: list[str], expected: list[str]) -> None:
    assert common_options_first(given) == expected


def test_every_family_has_exactly_the_commands_that_are_listed() -> None:
    for family, (_, names) in FAMILIES.items():
        assert sorted(load_family(family)) == sorted(names), family


def test_no_two_families_have_the_same_command() -> None:
    names = [name for _, family in FAMILIES.values() for name in family]
    assert len(names) == len(set(names))


def test_every_command_says_what_it_does_and_gives_an_example_of_itself() -> None:
    for family in FAMILIES:
        for one in load_family(family).values():
            assert one.help.endswith("."), one.name
            assert one.example.split()[0] == one.name


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--data-dir", "list_users", "status"], "status"),
        (["-q", "--vhost=v", "list_queues", "name"], "list_queues"),
        (["--version"], None),
        ([], None),
    ],
)
def test_the_command_is_the_first_word_that_belongs_to_no_option(
    arguments: list[str], command: str | None
) -> None:
    assert wanted_command(arguments) == command


@pytest.mark.parametrize("name", ["eval", "discover_peers", "peek"])
def test_a_command_that_has_no_counterpart_says_why(name: str) -> None:
    ended = ctl(name, "x")
    assert ended.returncode == 64
    assert ended.stderr == f"leveretctl: '{name}' is not served: {NOT_SERVED[name]}\n"


@pytest.mark.parametrize(("shell", "text"), [("bash", "complete"), ("zsh", "#compdef"), ("fish", "complete")])
def test_a_shell_is_told_how_to_complete(shell: str, text: str) -> None:
    script = ctl("completion", shell).stdout
    assert text in script
    assert "leveretctl" in script


def test_commands_are_completed_without_a_shell() -> None:
    assert ctl("autocomplete", "list_qu").stdout == "list_queues\n"


def test_a_shell_completes_commands() -> None:
    environment = {
        "PATH": "/usr/bin:/bin",
        "_LEVERETCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": "leveretctl list_qu",
        "COMP_CWORD": "1",
    }
    argv = [sys.executable, "-m", "leveret.cli.ctl"]
    ended = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert ended.stdout.split() == ["list_queues"]


def test_only_the_family_of_a_command_is_built() -> None:
    assert {one.name for one in build_app("list_users").registered_commands} == set(
        FAMILIES["access.users"][1]
    )
    assert {one.name for one in build_app(None).registered_commands} == NAMES


def test_a_command_starts_without_what_only_nodes_need() -> None:
    heavy = ("starlette", "uvicorn", "pyspark", "numpy", "pandas", "pyarrow", "proton", "leveret.core")
    code = (
        "import sys; from leveret.cli.ctl import build_app; build_app('list_queues');"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def ctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_start.run(warm_start.CTL, arguments, env=WITHOUT_SETTINGS, timeout_s=60)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["nosuch"], 64, "No such command 'nosuch'"),
        (["list_user"], 64, "Did you mean 'list_users'"),
        (["list_users", "-t", "abc"], 64, "'--timeout' / '-t'"),
        (["list_users", "extra"], 64, "unexpected extra argument"),
        (["list_queues", "--bogus"], 64, "No such option: --bogus"),
        (["list_users"], 64, "name the node with --data-dir or --url"),
        (["add_user"], 64, "Missing argument"),
        (["--formatter", "xml", "list_users"], 64, "'xml' is not one of table, pretty_table, json, csv"),
        (["--url", "localhost:15672", "list_users"], 64, "expected http://USER:PASSWORD@HOST:PORT"),
        (["--data-dir", "/nowhere", "list_users"], 69, "/nowhere does not exist"),
        (["--data-dir", "/usr", "list_users"], 69, "no node runs on /usr"),
        (["--url", "http://127.0.0.1:1", "list_users"], 69, "cannot reach 127.0.0.1"),
        (["--data-dir", "/nowhere", "await_startup", "--timeout", "0"], 69, "/nowhere does not exist"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line_and_an_exit_status(
    arguments: list[str], status: int, text: str
) -> None:
    ended = ctl(*arguments)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (status, 1)
    assert ended.stderr.startswith("leveretctl: ")
    assert text in ended.stderr


def test_help_fits_a_terminal_and_is_no_longer_than_three_lines_a_command() -> None:
    lines = ctl("help").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 3 * len(NAMES)


def test_without_a_command_one_line_says_where_help_is() -> None:
    ended = ctl()
    assert (ended.returncode, ended.stderr) == (64, "leveretctl: Missing command. (see leveretctl --help)\n")


def test_help_names_every_command_and_asks_no_node() -> None:
    ended = ctl("help")
    assert ended.returncode == 0
    assert all(name[:40] in ended.stdout for name in NAMES)
    assert "Set a policy" in ctl("help", "set_policy").stdout
    assert "Set a policy" in ctl("set_policy", "--help").stdout
    assert "Example: leveretctl set_policy" in ctl("set_policy", "-?").stdout
