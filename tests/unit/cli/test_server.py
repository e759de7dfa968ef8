from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import leveret
from leveret.testing.servers import warm_start

pytestmark = pytest.mark.process

PROJECT = Path(__file__).parents[3]
WITHOUT_SETTINGS = {
    name: text for name, text in os.environ.items() if name == "PATH" or name.startswith("PYTHON")
}


def serve(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return warm_start.run(warm_start.NODE, arguments, env=WITHOUT_SETTINGS | environ, timeout_s=60)


def test_the_version_is_that_of_the_package() -> None:
    assert serve("--version").stdout == f"leveret {leveret.__version__}\n"
    assert f'version = "{leveret.__version__}"' in (PROJECT / "pyproject.toml").read_text()


def test_an_unknown_setting_ends_with_one_line_and_78(tmp_path: Path) -> None:
    config = tmp_path / "leveret.conf"
    config.write_text("hartbeat = 3\n")
    ended = serve("serve", "--data-dir", str(tmp_path / "data"), "--config", str(config))
    assert ended.returncode == 78
    assert ended.stderr == f"leveret: {config}:1: unknown setting 'hartbeat'; did you mean 'heartbeat'?\n"
    assert not (tmp_path / "data").exists()


def test_the_settings_are_printed_without_starting_anything(tmp_path: Path) -> None:
    ended = serve("serve", "--print-config", LEVERET_HEARTBEAT="7")
    assert ended.returncode == 0
    assert "heartbeat = 7" in ended.stdout
    assert "# LEVERET_HEARTBEAT" in ended.stdout
    assert not ended.stderr
    ended = serve("serve", "--print-config", LEVERET_HEARTBEET="7")
    assert ended.stderr == "leveret: LEVERET_HEARTBEET is no setting, and is ignored\n"


def test_settings_come_from_files_directories_the_environment_and_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "leveret.conf").write_text("heartbeat = 1\nchannel_max = 1\nframe_max = 4096\n")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "10.conf").write_text("heartbeat = 2\nchannel_max = 2\n")
    files = f"{tmp_path / 'leveret.conf'}:{tmp_path / 'conf.d'}"
    environment = {"LEVERET_CONFIG_FILE": files, "LEVERET_HEARTBEAT": "3", "LEVERET_NODENAME": "leveret@x"}
    ended = serve("serve", "--set", "durability=os", "--print-config", **environment)
    origins = {line.split(" ")[0]: re.split(" {2,}# ", line) for line in ended.stdout.splitlines()}
    assert origins["heartbeat"] == ["heartbeat = 3", "LEVERET_HEARTBEAT"]
    assert origins["channel_max"] == ["channel_max = 2", f"{tmp_path / 'conf.d' / '10.conf'}:2"]
    assert origins["frame_max"] == ["frame_max = 4096", f"{tmp_path / 'leveret.conf'}:3"]
    assert origins["durability"] == ["durability = os", "--set"]
    assert origins["nodename"] == ["nodename = leveret@x", "LEVERET_NODENAME"]


def test_a_secret_of_the_environment_is_not_printed() -> None:
    ended = serve("serve", "--print-config", LEVERET_DEFAULT_PASS="s3cret")
    assert "s3cret" not in ended.stdout + ended.stderr
    assert "# default_pass is not shown" in ended.stdout


def test_flags_of_the_replication_win_over_every_other_source() -> None:
    flags = ["--replication-bind", "127.0.0.1", "--replication-port", "7", "--follow", "tcp://[::1]"]
    ended = serve(
        "serve", "--print-config", "--set", "replication.port=6", *flags, LEVERET_REPLICATION_PORT="5"
    )
    origins = {line.split(" ")[0]: re.split(" {2,}# ", line) for line in ended.stdout.splitlines()}
    assert origins["replication.bind"] == ["replication.bind = 127.0.0.1", "--replication-bind"]
    assert origins["replication.port"] == ["replication.port = 7", "--replication-port"]
    assert origins["replication.follow"] == ["replication.follow = tcp://[::1]:5679", "--follow"]


@pytest.mark.parametrize(
    ("flag", "text", "key"),
    [
        ("--replication-bind", "localhost", "replication.bind"),
        ("--replication-port", "many", "replication.port"),
        ("--follow", "localhost:5679", "replication.follow"),
    ],
)
def test_a_flag_that_is_malformed_ends_with_one_line_that_names_it(flag: str, text: str, key: str) -> None:
    ended = serve("serve", "--data-dir", "nowhere", flag, text)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (78, 1)
    assert ended.stderr.startswith(f"leveret: {flag}: {key} = '{text}' is not valid: expected ")


def test_the_help_of_serve_tells_its_options() -> None:
    help_text = serve("serve", "--help").stdout
    assert all(
        option in help_text
        for option in ("--data-dir", "--config", "--set", "--print-config", "--follow", "SIGHUP")
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serve"], "--data-dir"),
        (["serve", "--set", "heartbeat"], "KEY=VALUE"),
        (["serve", "--nosuch"], "No such option"),
        (["nosuch"], "No such command"),
    ],
)
def test_wrong_usage_ends_with_one_line_and_64(arguments: list[str], text: str) -> None:
    ended = serve(*arguments)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (64, 1)
    assert text in ended.stderr


def test_a_data_directory_that_cannot_be_used_ends_with_one_line_and_74(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    ended = serve("serve", "--data-dir", str(tmp_path / "data"))
    assert (ended.returncode, len(ended.stderr.splitlines())) == (74, 1)
    assert ended.stderr.startswith("leveret: data directory")


def test_a_node_starts_without_what_only_some_nodes_need() -> None:
    heavy = ("httpx", "rich", "pyspark", "numpy", "pandas", "pyarrow", "pika")
    code = (
        "import sys, leveret.cli.server, leveret.management.http.server, leveret.runtime.roles.roles;"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
