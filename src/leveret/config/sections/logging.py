"""The log of the node: its outputs and levels."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leveret.config.kinds import Bytes, Choice, FileName, Flag, Integer, LocalPath
from leveret.config.sections.rotation import OptionalRotation, Rotation
from leveret.config.settings import setting

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO + 5,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL + 1,
    "emergency": logging.CRITICAL + 2,
    "none": logging.CRITICAL + 3,
}
"""RabbitMQ's names of levels, and Python's numbers; no message has the level `none`."""
_LEVEL: Final = Choice(tuple(LEVELS))
_LEVEL_OR_DEFAULT: Final = Choice((*LEVELS, "default"))
_FORMATTER: Final = Choice(("plaintext", "json"))
_FORMATTER_HELP: Final = "`plaintext` is `key=value`, `json` an object a line."


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleLog:
    """The log on standard output or standard error."""

    enabled: bool = setting("log.console", Flag(), "true", "Whether to log to the console.")
    level: str = setting(
        "log.console.level",
        _LEVEL_OR_DEFAULT,
        "default",
        "Log level of the console; `default` is the level of `log.default.level`.",
    )
    formatter: str = setting("log.console.formatter", _FORMATTER, "plaintext", _FORMATTER_HELP)
    stdio: str = setting(
        "log.console.stdio", Choice(("stdout", "stderr")), "stderr", "Stream of the console."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLogSettings:
    """The log in a file; None for no file."""

    name: Path | None = setting(
        "log.file",
        FileName(),
        "false",
        "The log file; a name without a path is in `log.dir`. SIGHUP reopens it.",
    )
    level: str = setting(
        "log.file.level",
        _LEVEL_OR_DEFAULT,
        "default",
        "Log level of the file; `default` is the level of `log.default.level`.",
    )
    formatter: str = setting("log.file.formatter", _FORMATTER, "plaintext", _FORMATTER_HELP)
    rotation_date: Rotation | None = setting(
        "log.file.rotation.date",
        OptionalRotation(),
        "none",
        "Time of the rotation of the log file, in local time.",
    )
    rotation_bytes: int = setting(
        "log.file.rotation.size",
        Bytes(0),
        "0",
        "Size at which the log file is rotated; 0 for no limit.",
    )
    rotation_count: int = setting(
        "log.file.rotation.count",
        Integer(0, 1000),
        "0",
        "Number of rotated files that are kept, as `NAME.0` (the newest), `NAME.1` and so on.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLevels:
    """Lowest levels by category; `default` leaves the level to the outputs."""

    default: str = setting(
        "log.default.level", _LEVEL, "info", "Log level of categories without a level of their own."
    )
    connection: str = setting(
        "log.connection.level",
        _LEVEL_OR_DEFAULT,
        "default",
        "Log level for connections: accepted, authenticated, refused, closed.",
    )
    queue: str = setting("log.queue.level", _LEVEL_OR_DEFAULT, "default", "Log level for queues.")
    replication: str = setting(
        "log.replication.level",
        _LEVEL_OR_DEFAULT,
        "default",
        "Log level for schema replication and warm standby.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The outputs and levels of the log. A `directory` of None is `log` in the data directory."""

    directory: Path | None = setting(
        "log.dir", LocalPath(), "none", "Directory of the log file; none for `log` in the data directory."
    )
    levels: LogLevels = field(default_factory=LogLevels)
    console: ConsoleLog = field(default_factory=ConsoleLog)
    file: FileLogSettings = field(default_factory=FileLogSettings)
