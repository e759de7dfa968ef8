"""What is in packaging/ fits the commands that it starts."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leveret.config import load

pytestmark = pytest.mark.process

PACKAGING = Path(__file__).parents[2] / "packaging"
UNIT = PACKAGING / "leveret.service"
CONTAINERFILE = PACKAGING / "Containerfile"


def directive(name: str) -> str:
    [value] = re.findall(rf"(?m)^{name}=(.*)$", UNIT.read_text())
    return str(value)


def instruction(name: str) -> str:
    return str(re.findall(rf"(?m)^{name} (.*)$", CONTAINERFILE.read_text())[-1])


def print_config(arguments: list[str], tmp_path: Path) -> str:
    """Run the command with its paths under `tmp_path`, printing settings instead of serving."""
    moved = [str(tmp_path) + each if each.startswith("/") else each for each in arguments]
    argv = [sys.executable, "-m", "leveret.cli.server", *moved, "--print-config"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout


def test_the_units_command_is_taken_with_the_example_as_settings(tmp_path: Path) -> None:
    (tmp_path / "etc" / "leveret").mkdir(parents=True)
    shutil.copy(PACKAGING / "leveret.conf.example", tmp_path / "etc" / "leveret" / "leveret.conf")
    program, *arguments = shlex.split(directive("ExecStart"))
    assert program.endswith("/bin/leveret")
    assert "listeners.tcp.default = 127.0.0.1:5672" in print_config(arguments, tmp_path)


def test_the_unit_keeps_its_directories_where_the_command_looks() -> None:
    command = shlex.split(directive("ExecStart"))
    assert command[command.index("--config") + 1] == f"/etc/{directive('ConfigurationDirectory')}"
    assert command[command.index("--data-dir") + 1].startswith(f"/var/lib/{directive('StateDirectory')}/")


def test_the_unit_gives_a_stop_more_time_than_the_node_takes() -> None:
    stop_s = int(directive("TimeoutStopSec").removesuffix("s"))
    assert stop_s * 1000 > 2 * load(None).process.shutdown_timeout_ms


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    program = shlex.split(directive("ExecStart"))[0]
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(program, sys.executable))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if UNIT.name in line]) == (
        0,
        [],
    )


def test_the_images_command_is_taken_with_the_settings_in_it(tmp_path: Path) -> None:
    printed = print_config(
        [*json.loads(instruction("CMD")), "--config", "/10-container.conf"], copied_settings(tmp_path)
    )
    exposed = set(instruction("EXPOSE").split())
    assert exposed == set(
        re.findall(r"(?m)^(?:stream\.)?listeners\.tcp\.default = 0\.0\.0\.0:(\d+)", printed)
    ) | {re.findall(r"(?m)^management\.tcp\.port = (\d+)", printed)[0]}
    assert "management.tcp.ip = 0.0.0.0" in printed


def copied_settings(tmp_path: Path) -> Path:
    shutil.copy(PACKAGING / "container.conf", tmp_path / "10-container.conf")
    return tmp_path


def test_the_image_runs_as_a_user_of_its_own() -> None:
    assert instruction("USER") == "leveret"
    assert CONTAINERFILE.read_text().index("useradd") < CONTAINERFILE.read_text().index("USER leveret")


def test_all_that_the_image_is_made_of_is_there() -> None:
    sources = re.findall(r"(?m)^COPY (?!--from)(.*) \S+$", CONTAINERFILE.read_text())
    copied = [PACKAGING.parent / name for each in sources for name in each.split()]
    copied += [
        PACKAGING.parent / name
        for name in re.findall(r"COPY --from=build \S+ \S+\nCOPY (\S+)", CONTAINERFILE.read_text())
    ]
    assert len(copied) >= 6
    assert [path for path in copied if not path.exists()] == []
