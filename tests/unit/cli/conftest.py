"""The set-up of all unit tests of the commands."""

from __future__ import annotations

from functools import cache

import typer.main

# To make all commands of a program takes most of the time of running one, and they are the same each time.
typer.main.get_command = cache(typer.main.get_command)
