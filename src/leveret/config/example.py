"""The example file of all settings, made from their declarations: each line is a comment or a default.

python -m leveret.config.example > packaging/leveret.conf.example
"""

from __future__ import annotations

import sys
import textwrap
from typing import Final

from leveret.config import SETTINGS, Setting
from leveret.config.kinds import NONE
from leveret.config.syntax import render_line

_WIDTH: Final = 110
_NAME: Final = "1"
_HEAD: Final = """\
# Settings of a Leveret node, in the form of rabbitmq.conf. Each stands here with its default: to change one,
# take away the # before it. What holds on a node, and where it comes from, is printed by
#
#     leveret serve --config /etc/leveret/leveret.conf --print-config
#
# A value with a # in it goes into single quotes; `key = $(<FILE)` takes the first line of a file.
# Made by `python -m leveret.config.example`.
"""


def example() -> str:
    """Return the text of the file."""
    return _HEAD + "".join(_section(one) for one in SETTINGS)


def lines_of(one: Setting) -> list[str]:
    """Return the lines of a setting with its defaults; a family without defaults has the line `none`."""
    if not one.is_family:
        return [render_line(one.key, one.default)]
    return [render_line(f"{one.prefix}.{name}", text) for name, text in one.defaults.items()] or [
        render_line(one.prefix, NONE)
    ]


def _section(one: Setting) -> str:
    text = f"{one.help} Takes {one.allowed}."
    if one.is_family:
        names = ", ".join(one.names) or "any, such as " + (next(iter(one.defaults), _NAME))
        text += f" As lines {one.key} = VALUE; $name is {names}."
    about = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n" + "".join(f"# {line}\n" for line in about) + "".join(f"#{line}\n" for line in lines_of(one))


if __name__ == "__main__":
    sys.stdout.write(example())
