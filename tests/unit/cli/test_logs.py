from __future__ import annotations

import errno
import importlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.cli.logs import CATEGORIES, LogFile, Logs
from leveret.config import load
from leveret.config.sections.logging import LogSettings
from leveret.model.errors import ConfigError

CONNECTION = "leveret.runtime.clients.connection_log"
OTHER = "leveret.runtime.node.node"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for each in root.handlers:
        each.close()
    root.handlers, root.level = handlers, level


def log(**settings: str) -> LogSettings:
    return load(None, {name.replace("_", "."): value for name, value in settings.items()}).log


def levels_written(tmp_path: Path, **settings: str) -> set[tuple[str, str]]:
    """Which levels of which loggers get to the file."""
    Logs(log(log_console="false", log_file="l", **settings), tmp_path)
    for name in (CONNECTION, OTHER):
        for level in ("debug", "info", "warning", "error"):
            getattr(logging.getLogger(name), level)(f"{name} {level}")
    lines = (tmp_path / "log" / "l").read_text().splitlines()
    return {(line.split()[-2], line.split()[-1]) for line in lines}


def from_level(least: str) -> set[str]:
    levels = ["debug", "info", "warning", "error"]
    return set(levels[levels.index(least) :])


@pytest.mark.parametrize(
    ("settings", "connection", "other"),
    [
        ({}, "info", "info"),
        ({"log_default_level": "warning"}, "warning", "warning"),
        ({"log_file_level": "debug"}, "debug", "debug"),
        ({"log_connection_level": "error"}, "error", "info"),
        ({"log_connection_level": "debug"}, "debug", "info"),
        ({"log_connection_level": "debug", "log_file_level": "warning"}, "warning", "warning"),
    ],
)
def test_an_event_passes_its_categorys_level_and_its_outputs(
    tmp_path: Path, settings: dict[str, str], connection: str, other: str
) -> None:
    expected = {(CONNECTION, level) for level in from_level(connection)}
    expected |= {(OTHER, level) for level in from_level(other)}
    assert levels_written(tmp_path, **settings) == expected


@pytest.mark.parametrize("name", [each for names in CATEGORIES.values() for each in names])
def test_a_category_is_of_modules_that_log(name: str) -> None:
    module = importlib.import_module(name)
    assert any(isinstance(each, logging.Logger) and each.name == name for each in vars(module).values())


def test_a_log_without_outputs_tells_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Logs(log(log_console="false"), tmp_path)
    logging.getLogger(OTHER).error("lost")
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def lines_in(handler: LogFile, tmp_path: Path, count: int) -> dict[str, list[str]]:
    for number in range(count):
        handler.handle(logging.LogRecord(OTHER, logging.INFO, "", 0, f"{number}", None, None))
    handler.close()
    return {path.name: path.read_text().split() for path in sorted(tmp_path.iterdir())}


def test_a_full_file_is_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    settings = log(**{"log_file_rotation_size": "4", "log_file_rotation_count": "2"}).file
    handler = LogFile(tmp_path / "l", settings)
    assert lines_in(handler, tmp_path, 8) == {"l": ["6", "7"], "l.0": ["4", "5"], "l.1": ["2", "3"]}


def test_a_full_file_is_begun_anew_where_none_is_kept(tmp_path: Path) -> None:
    handler = LogFile(tmp_path / "l", log(**{"log_file_rotation_size": "4"}).file)
    assert lines_in(handler, tmp_path, 3) == {"l": ["2"]}


def test_a_file_is_put_aside_when_its_time_has_come(tmp_path: Path) -> None:
    settings = log(**{"log_file_rotation_date": "$D0", "log_file_rotation_count": "1"}).file
    handler = LogFile(tmp_path / "l", settings)
    tomorrow = logging.LogRecord(OTHER, logging.INFO, "", 0, "tomorrow", None, None)
    tomorrow.created += 86_400
    handler.handle(logging.LogRecord(OTHER, logging.INFO, "", 0, "today", None, None))
    handler.handle(tomorrow)
    handler.close()
    assert (tmp_path / "l.0").read_text() == "today\n"
    assert (tmp_path / "l").read_text() == "tomorrow\n"


def test_a_log_file_is_private_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    for word in ("one", "two"):
        handler = LogFile(tmp_path / "deep" / "l", log().file)
        handler.handle(logging.LogRecord(OTHER, logging.INFO, "", 0, word, None, None))
        handler.close()
    assert (tmp_path / "deep" / "l").read_text() == "one\ntwo\n"
    assert (tmp_path / "deep" / "l").stat().st_mode & 0o777 == 0o600


def test_lines_that_a_full_disk_refused_are_counted_in_the_next_one(tmp_path: Path) -> None:
    handler = LogFile(Path("/dev/full"), log().file)
    event = logging.LogRecord(OTHER, logging.INFO, "", 0, "event", None, None)
    handler.handle(event)
    handler.handle(event)
    handler.path = tmp_path / "l"
    handler.reopen()
    handler.handle(event)
    handler.close()
    assert (tmp_path / "l").read_text() == "log_lines_lost count=2\nevent\n"


@pytest.mark.parametrize("way", ["reopened", "full"])
def test_while_no_new_file_can_be_opened_the_old_one_goes_on(way: str, tmp_path: Path) -> None:
    """Whoever logs something must never fail for it: that would be any code of the node."""
    full = {"log_file_rotation_size": "4", "log_file_rotation_count": "1"} if way == "full" else {}
    handler = LogFile(tmp_path / "logs" / "l", log(**full).file)
    event = logging.LogRecord(OTHER, logging.INFO, "", 0, "event", None, None)
    handler.handle(event)
    (tmp_path / "logs").rename(tmp_path / "away")
    (tmp_path / "logs").write_text("no directory")
    if way == "reopened":
        handler.reopen()
    handler.handle(event)
    handler.handle(event)
    (tmp_path / "logs").unlink()
    handler.reopen()
    handler.handle(event)
    handler.close()
    assert (tmp_path / "away" / "l").read_text() == "event\n" * 3, "none is lost"
    assert (tmp_path / "logs" / "l").read_text() == "event\n", "the directory is made, too"


def test_a_new_file_that_cannot_be_opened_costs_none_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: each event tries again, and must not put aside what is aside already."""
    settings = log(**{"log_file_rotation_size": "4", "log_file_rotation_count": "2"}).file
    handler = LogFile(tmp_path / "l", settings)
    events = iter(
        [logging.LogRecord(OTHER, logging.INFO, "", 0, str(number), None, None) for number in range(9)]
    )
    for _ in range(4):
        handler.handle(next(events))
    with monkeypatch.context() as full:
        full.setattr(handler, "_open", lambda: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space")))
        for _ in range(3):
            handler.handle(next(events))
    handler.handle(next(events))
    handler.close()
    kept = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert kept == {"l": ["7"], "l.0": ["2", "3", "4", "5", "6"], "l.1": ["0", "1"]}


def test_a_log_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"log.file: cannot open {tmp_path}: Is a directory"):
        LogFile(tmp_path, log().file)
