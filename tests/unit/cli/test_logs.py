from __future__ import annotations

import logging
import re

from leveret.cli.log_lines import KeyValueLine


def formatted(message: str, *arguments: object, **more: object) -> str:
    record = logging.LogRecord("leveret.runtime.node", logging.INFO, "", 0, message, arguments, None)
    record.__dict__.update(more)
    return KeyValueLine().format(record)


def test_an_event_has_time_level_and_room() -> None:
    line = formatted("queue_opened vhost=%s queue=%s", "/", "q")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=info from=runtime\.node queue_opened vhost=/ queue=q",
        line,
    )


def test_an_event_is_one_line_whatever_is_in_it() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        line = formatted("failed name=%s", "a\nb", exc_info=(ValueError, error, error.__traceback__))
    assert "\n" not in line
    assert 'name="a\\nb"" in line
    assert 'ValueError: two\\nlines"' in line
