from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import httpx
import pytest

from leveret.cli.api import Api, CtlError
from leveret.cli.command import Session
from leveret.cli.commands.broker.definitions import export_definitions
from leveret.cli.output.array_file import write_array


@pytest.mark.parametrize("items", [[], [1], [{"a": "\u2028\n"}, None, [2]]])
def test_items_become_one_array(items: list[object], tmp_path: Path) -> None:
    assert write_array(tmp_path / "file", iter(items)) == len(items)
    assert json.loads((tmp_path / "file").read_text()) == items


def test_an_array_goes_to_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert write_array(None, [1, 2]) == 2
    assert capfdbinary.readouterr().out == b"[\n1,\n2\n]\n"


def test_the_file_is_never_anybody_elses_to_read(tmp_path: Path) -> None:
    def watched() -> Iterator[int]:
        [part] = tmp_path.iterdir()
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        yield 1

    write_array(tmp_path / "file", watched())


def test_the_file_of_a_run_that_was_killed_is_in_the_way_of_none(tmp_path: Path) -> None:
    """In a container each run has the same process id."""
    left = tmp_path / f".file.{os.getpid()}.part"
    left.write_text("[1")
    assert write_array(tmp_path / "file", [1]) == 1


def test_a_file_takes_the_place_of_another_one_once_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("of yesterday")
    synced: list[tuple[int, str]] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append((os.fstat(file).st_size, (tmp_path / "file").read_text()))
    )
    write_array(tmp_path / "file", [1])
    assert synced == [((tmp_path / "file").stat().st_size, "of yesterday")]


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path):
        with pytest.raises(CtlError, match="is not a file") as caught:
            write_array(path, [1])
        assert caught.value.status == 65
    assert fifo.is_fifo()


def test_a_link_is_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("former")
    (tmp_path / "link").symlink_to(target)
    write_array(tmp_path / "link", [1])
    assert json.loads(target.read_text()) == [1]


def test_exported_definitions_are_for_their_owner_alone_also_in_place_of_a_file_for_all(
    tmp_path: Path,
) -> None:
    """They have the hashes of passwords."""
    answer = httpx.MockTransport(lambda request: httpx.Response(200, json={"users": []}))
    node = Api(httpx.Client(transport=answer, base_url="http://node"), "the node")
    ctl = Session(open=lambda: nullcontext(node), stack=ExitStack(), quiet=True)
    file = tmp_path / "definitions.json"
    file.write_text("of yesterday")
    file.chmod(0o644)
    export_definitions.action(ctl, str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text()) == {"users": []}
    assert [*tmp_path.iterdir()] == [file]
