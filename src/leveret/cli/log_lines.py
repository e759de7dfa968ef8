"""An event as one line: `key=value`, or a JSON object.

    2026-11-21T05:13:09.042Z level=info from=runtime.logs.queue_store queue_down vhost=/ queue=q error="no space"

    {"time":"2026-11-21T05:13:09.042Z","level":"info","from":"runtime.logs.queue_store","msg":"queue_down","vhost":"/",...}

Rooms log `logger.info("queue_down vhost=%s queue=%s", vhost, name)`: the template is the event's name and its keys,
so values need no parsing and are quoted if they are ambiguous. Text from a client can therefore begin neither a new
line nor a new key.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from leveret.cli.output.terms import printable, printable_json

_FIELD: Final = re.compile(r"([a-z_0-9]+)=(%[-+ #0-9.]*[a-zA-Z])")
_FIXED: Final = re.compile(r"([a-z_0-9]+)=([^\s%]+)")
_PLAIN: Final = re.compile(r"[^\s\"=\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class Word(NamedTuple):
    """A word of a template: a field with a format, or its value; the event's name as a value; or plain text."""

    key: str
    form: str
    text: str


@lru_cache(maxsize=1024)
def _shape(template: str) -> tuple[Word, ...] | None:
    """The words of a template; None if not every `%` in it is the value of a key, or the event's name."""
    words: list[Word] = []
    for word in template.split(" "):
        if word == "%s" and not words:
            words.append(Word("", word, ""))
            continue
        field = _FIELD.fullmatch(word)
        fixed = _FIXED.fullmatch(word)
        if field is None and fixed is None and "%" in word:
            return None
        if field is not None:
            words.append(Word(field[1], field[2], ""))
        else:
            words.append(Word(fixed[1], "", fixed[2]) if fixed else Word("", "", word))
    return tuple(words)


def words_of(record: logging.LogRecord) -> list[tuple[str, Any]]:
    """The event's words in order: (key, value) for a field, (word, None) for any other."""
    shape = _shape(record.msg) if isinstance(record.msg, str) else None
    arguments = record.args if isinstance(record.args, tuple) else ()
    if shape is None or sum(1 for word in shape if word.form) != len(arguments):
        return [(record.getMessage(), None)]
    left = iter(arguments)
    values = [_value(word.form, next(left)) if word.form else word.text for word in shape]
    return [
        (word.key, value) if word.key else (str(value), None)
        for word, value in zip(shape, values, strict=True)
    ]


def _value(form: str, argument: object) -> object:
    if isinstance(argument, bool | int | float) and form in ("%s", "%d"):
        return argument
    return form % (argument,)


class KeyValueLine(logging.Formatter):
    """Formats an event as time, level, room, name and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line without a line feed."""
        words = [_time_of(record), f"level={record.levelname.lower()}", f"from={_room_of(record)}"]
        words += [
            _escaped(word) if value is None else f"{word}={_quoted(value)}"
            for word, value in words_of(record)
        ]
        if record.exc_info:
            words.append(f"traceback={json.dumps(self.formatException(record.exc_info))}")
        return " ".join(words)


class JsonLine(logging.Formatter):
    """Formats an event as a JSON object: RabbitMQ's `time`, `level` and `msg`, then the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line without a line feed."""
        words = words_of(record)
        shown: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "from": _room_of(record),
            "msg": " ".join(word for word, value in words if value is None),
        }
        shown |= {f"{word}_" if word in shown else word: value for word, value in words if value is not None}
        if record.exc_info:
            shown["traceback"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(shown, ensure_ascii=False, separators=(",", ":")))


def _time_of(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return when.removesuffix("+00:00") + "Z"


def _room_of(record: logging.LogRecord) -> str:
    return record.name.removeprefix("leveret.")


def _escaped(word: str) -> str:
    return printable(word.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r"))


def _quoted(value: object) -> str:
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
