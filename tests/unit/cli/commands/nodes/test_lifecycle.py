"""Process ids and times of commands that wait, as an operator or a file gives them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from leveret.cli import exits
from leveret.cli.commands.nodes import lifecycle
from leveret.cli.ctl import _describe, build_app, common_options_first, wanted_command
from leveret.cli.program import run


@pytest.mark.parametrize("octets", [b"", b"0", b"-1", b"9" * 5_000, b"\xff", "\u0663".encode()])
def test_a_file_without_the_id_of_a_process_is_waited_for_like_an_empty_one(
    tmp_path: Path, octets: bytes
) -> None:
    file = tmp_path / "leveret.pid"
    file.write_bytes(octets)
    assert lifecycle._pid_in(file) == []


@pytest.mark.parametrize("option", ["--timeout", "--pid"])
def test_a_number_beyond_what_the_machine_takes_is_a_mistake_of_usage(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = common_options_first(["wait", option, "9" * 400])
    assert run(build_app(wanted_command(words)), "leveretctl", _describe, words) == exits.USAGE
    assert option in capsys.readouterr().err


@pytest.mark.process
def test_a_process_that_got_the_id_of_a_node_that_crashed_is_not_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.pid"
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            file.write_text(f"{other.pid}\n")
            words = common_options_first(["stop", str(file)])
            assert run(build_app(wanted_command(words)), "leveretctl", _describe, words) == exits.UNAVAILABLE
            assert "is no node of Leveret" in capsys.readouterr().err
            assert other.poll() is None
        finally:
            other.kill()


def test_octets_that_are_not_utf_8_are_a_mistake_of_usage() -> None:
    assert _describe(UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")) == (
        exits.USAGE,
        "an argument is not UTF-8",
    )
