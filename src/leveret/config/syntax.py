r"""The lines of a configuration file, in RabbitMQ's sysctl-like form.

    # a comment
    key.of.words = value                # a comment may follow
    default_pass = 'in # single quotes' # in quotes no character is special
    default_pass = $(<secrets/pass)     # the first line of a file; a relative path begins beside this one
    loopback_users.j\.doe = true        # a dot that does not divide the key

A key is words of letters, digits, `_` and `-`, joined by dots. The last line of a repeated key holds, as in RabbitMQ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from leveret.model.errors import ConfigError

_LINE: Final = re.compile(
    r"""\s* (?P<key> (?:[A-Za-z0-9_-]|\\\.)+ (\.(?:[A-Za-z0-9_-]|\\\.)+)* ) \s* = \s*
        (?: '(?P<quoted>[^']*)' | (?P<plain>[^'\#\s][^\#]*?) ) \s* (?:\#.*)?""",
    re.VERBOSE,
)
_FROM_FILE: Final = re.compile(r"\$\(<(?P<path>[^)]+)\)")
_FROM_KEY: Final = re.compile(r"\$\([A-Za-z0-9_.-]+\)")
_NEEDS_QUOTES: Final = re.compile(r"^\s|\s$|[#']|^$|^\$\(")


class SettingText(NamedTuple):
    """A setting's text and its place."""

    text: str
    origin: str


def _never(key: str) -> bool:
    return False


def parse_lines(
    text: str, name: str, read: Callable[[str], str], joins: Callable[[str], bool] = _never
) -> dict[str, SettingText]:
    """Parse a file's text; `name` is the file's name, for errors; `read` returns the text of a file that it names.

    The last line of a repeated key holds. The lines of a key that `joins` are regular expressions, and all of them
    hold.

    Raises:
        ConfigError: a line is no setting. The text names the line and only its key, as its value may be secret.
    """
    given: dict[str, SettingText] = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            # Without a `=`, a secret may stand behind the key.
            first = line.split("=", 1)[0].split()
            raise ConfigError(
                f"{name}:{number}: '{first[0] if first else '='}' is not a setting of the form 'key = value' "
                "(a value with # goes into single quotes)"
            )
        key = match["key"].replace("\\.", ".")
        value = match["quoted"]
        if value is None:
            value = _plain_value(match["plain"], f"{name}:{number}: {key}", read)
        place = f"{name}:{number}"
        before = given.get(key)
        if before is not None and before.text != value and joins(key):
            value, place = f"(?:{before.text})|(?:{value})", f"{before.origin}, {place}"
        given[key] = SettingText(value, place)
    return given


def _plain_value(text: str, place: str, read: Callable[[str], str]) -> str:
    if _FROM_KEY.fullmatch(text):
        raise ConfigError(f"{place}: a reference to another key is not supported: write the value")
    from_file = _FROM_FILE.fullmatch(text)
    if from_file is None:
        return text
    try:
        return read(from_file["path"]).split("\n", 1)[0].rstrip("\r")
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def render_line(key: str, value: str) -> str:
    """Return a line that `parse_lines` reads back."""
    return f"{key} = '{value}'" if _NEEDS_QUOTES.search(value) else f"{key} = {value}"
