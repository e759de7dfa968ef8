"""The lines of a configuration file, in RabbitMQ's sysctl-like form.

    # a comment
    key.of.words = value                # a comment may follow
    default_pass = 'in # single quotes' # then nothing in it is special

A key is words of letters, digits, `_` and `-`, joined by dots. Of a key that is given twice the last
line counts, as in RabbitMQ.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from leveret.model.errors import ConfigError

_LINE: Final = re.compile(
    r"""\s* (?P<key> [A-Za-z0-9_-]+ (\.[A-Za-z0-9_-]+)* ) \s* = \s*
        (?: '(?P<quoted>[^']*)' | (?P<plain>[^'\#\s][^\#]*?) ) \s* (?:\#.*)?""",
    re.VERBOSE,
)
_NEEDS_QUOTES: Final = re.compile(r"^\s|\s$|[#']|^$")


class Given(NamedTuple):
    """A setting's text and where it was given."""

    text: str
    origin: str


def parse_lines(text: str, name: str) -> dict[str, Given]:
    """Read a file's text; `name` is the file's, for errors.

    Raises:
        ConfigError: a line is no setting; names the line and shows only its key, as its value may be secret.
    """
    given: dict[str, Given] = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            start = line.split("=", 1)[0].strip()
            raise ConfigError(
                f"{name}:{number}: '{start}' is not a setting of the form 'key = value' "
                "(a value with # goes into single quotes)"
            )
        value = match["plain"] if match["quoted"] is None else match["quoted"]
        given[match["key"]] = Given(value, f"{name}:{number}")
    return given


def render_line(key: str, value: str) -> str:
    """One line that `parse_lines` reads back."""
    return f"{key} = '{value}'" if _NEEDS_QUOTES.search(value) else f"{key} = {value}"
