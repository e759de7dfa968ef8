"""`/api/operations`: an operator's commands for which RabbitMQ has no path.

Settings and alarm limits of the running node, and its log. RabbitMQ's tools do these by Erlang calls.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from starlette.responses import Response

from leveret.config.current import settings_in_force
from leveret.config.kinds import Bytes
from leveret.config.sections.logging import LEVELS
from leveret.core.broker.alarms import Watermark
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.replies import done, json_reply
from leveret.model.errors import InvalidCommand
from leveret.model.whole_number import whole_number

logger = logging.getLogger(__name__)

TAIL_BYTES_MAX: Final = 1 << 20
"""The most octets of a log file to read or send at once."""

_LINES_MAX: Final = 10_000
_END: Final = "end"
_SIZE: Final = Bytes(0)


class LogLevelBody(msgspec.Struct):
    """The body that sets the log's level."""

    level: str


class WatermarkBody(msgspec.Struct):
    """The body that sets an alarm's limit: a part of all memory, or a size with its unit."""

    relative: float | None = None
    absolute: str | int | None = None

    def watermark(self) -> Watermark:
        """The limit.

        Raises:
            InvalidCommand: none or both are given, or one is invalid.
        """
        if (self.relative is None) is (self.absolute is None):
            raise InvalidCommand("give either 'relative' or 'absolute'")
        if self.absolute is None:
            if not self.relative or self.relative >= 0:
                return Watermark(ratio=self.relative)
            raise InvalidCommand(f"relative is {self.relative}: expected 0 or more")
        try:
            return Watermark(bytes_=_SIZE.parse(str(self.absolute)))
        except ValueError:
            raise InvalidCommand(f"absolute is '{self.absolute}': expected {_SIZE.allowed}") from None


class ListenersBody(msgspec.Struct):
    """The body that closes or opens the listeners for clients."""

    suspended: bool


class MaintenanceBody(msgspec.Struct):
    """The body that takes the node out of service, or back."""

    draining: bool


async def show_node(call: Call) -> Response:
    """The node's name alone, which is cheap."""
    return json_reply({"name": call.node.config.node_name})


async def show_settings(call: Call) -> Response:
    """The present settings, without secrets."""
    existing = settings_in_force(call.node.config)
    return json_reply([{"key": key, "value": value} for key, value in existing])


async def set_memory_limit(call: Call) -> Response:
    """Block publishers above this use of memory, until the node restarts."""
    call.node.alarms.set_memory((await call.body(WatermarkBody)).watermark())
    return done()


async def set_disk_limit(call: Call) -> Response:
    """Block publishers below this much free disk, until the node restarts."""
    call.node.alarms.set_disk((await call.body(WatermarkBody)).watermark())
    return done()


async def set_listeners(call: Call) -> Response:
    """Accept no more clients, or accept them again, until the node restarts."""
    if (await call.body(ListenersBody)).suspended:
        call.node.maintenance.suspend_listeners()
    else:
        await call.node.maintenance.resume_listeners()
    return done()


async def set_maintenance(call: Call) -> Response:
    """Serve clients no more, or again, until the node restarts."""
    if (await call.body(MaintenanceBody)).draining:
        await call.node.maintenance.drain()
    else:
        await call.node.maintenance.revive()
    return done()


async def reopen_log(call: Call) -> Response:
    """Continue in a new log file after the old one was moved away."""
    _log_file()
    for handler in logging.getLogger().handlers:
        reopen = getattr(handler, "reopen", None)
        if reopen is not None:
            reopen()
    return done()


async def show_log(call: Call) -> Response:
    """The log's outputs, and its level."""
    level = logging.getLogger().level
    name = next((name for name, number in LEVELS.items() if number == level), str(level))
    return json_reply({"places": list(log_places()), "level": name})


async def set_log_level(call: Call) -> Response:
    """Log from a severity on, in all categories and to all outputs, until the node restarts."""
    name = (await call.body(LogLevelBody)).level
    if name not in LEVELS:
        raise InvalidCommand(f"level '{name}' is not one of {', '.join(LEVELS)}")
    root = logging.getLogger()
    for handler in root.handlers:
        handler.filters.clear()
        handler.setLevel(LEVELS[name])
    root.setLevel(LEVELS[name])
    logger.warning("log_level_set level=%s", name)
    return done()


async def show_lines(call: Call) -> Response:
    """The last lines of the log file."""
    count = _count(call.path("count"))
    path = _log_file()
    size = path.stat().st_size
    text = _read(path, max(0, size - TAIL_BYTES_MAX))
    return json_reply({"path": str(path), "lines": text.splitlines()[-count:]})


async def show_text(call: Call) -> Response:
    """The log file from an offset on, and the next offset; a file that was rotated begins anew."""
    path = _log_file()
    size = path.stat().st_size
    where = call.path("offset")
    offset = size if where == _END else _count(where, least=0, most=1 << 62)
    start = 0 if offset > size else offset
    data = _octets(path, start)
    return json_reply({"text": data.decode("utf-8", "replace"), "offset": start + len(data)})


def log_places() -> Iterator[str]:
    """The outputs of the log: files by path, the console by its name."""
    for handler in logging.getLogger().handlers:
        path = _path_of(handler)
        if path is not None:
            yield str(path)
        elif isinstance(handler, logging.StreamHandler):
            yield str(getattr(handler.stream, "name", "<console>"))


def _path_of(handler: logging.Handler) -> Path | None:
    """The file of a handler that writes one."""
    found = getattr(handler, "path", None) or getattr(handler, "baseFilename", None)
    return None if found is None else Path(found)


def _log_file() -> Path:
    paths = [path for handler in logging.getLogger().handlers if (path := _path_of(handler)) is not None]
    if not paths:
        raise InvalidCommand(
            f"the log goes to {', '.join(log_places()) or 'no place'}, not to a file; log.file sets one"
        )
    return paths[0]


def _octets(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset, os.SEEK_SET)
        return file.read(TAIL_BYTES_MAX)


def _read(path: Path, offset: int) -> str:
    """The text from an offset on; except at the beginning, from the next whole line."""
    text = _octets(path, offset).decode("utf-8", "replace")
    return text if offset == 0 else text.partition("\n")[2]


def _count(text: str, least: int = 1, most: int = _LINES_MAX) -> int:
    count = whole_number(text, least=least, most=most)
    if count is None:
        raise InvalidCommand(f"'{text[:20]}' is not a whole number from {least} to {most}")
    return count


_ADMIN: Final = Requirement.ADMINISTRATOR
ROUTES = [
    resource("/api/operations/node", GET=show_node),
    resource("/api/operations/settings", need=_ADMIN, GET=show_settings),
    resource("/api/operations/memory-limit", need=_ADMIN, defines=False, PUT=set_memory_limit),
    resource("/api/operations/disk-limit", need=_ADMIN, defines=False, PUT=set_disk_limit),
    resource("/api/operations/listeners", need=_ADMIN, defines=False, PUT=set_listeners),
    resource("/api/operations/maintenance", need=_ADMIN, defines=False, PUT=set_maintenance),
    resource("/api/operations/log", need=_ADMIN, GET=show_log),
    resource("/api/operations/log/reopen", need=_ADMIN, on_followers=True, defines=False, POST=reopen_log),
    resource("/api/operations/log/level", need=_ADMIN, on_followers=True, defines=False, PUT=set_log_level),
    resource("/api/operations/log/lines/{count}", need=_ADMIN, GET=show_lines),
    resource("/api/operations/log/text/{offset}", need=_ADMIN, GET=show_text),
]
