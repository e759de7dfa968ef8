"""Help with commands by family, so that more than a hundred of them are readable on 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

_NAME_COLUMNS_MAX: Final = 32
"""A longer name has a line of its own."""


class GroupedHelp(TyperGroup):
    """A group that lists its commands under their `rich_help_panel` in its help."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write a section for each family, in the order of the families' first commands."""
        families: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            family = str(getattr(command, "rich_help_panel", "Commands"))
            families.setdefault(family, []).append((name, (command.help or "").partition("\n\n")[0]))
        for family, rows in families.items():
            with formatter.section(family):
                formatter.write_dl(rows, col_max=_NAME_COLUMNS_MAX)
