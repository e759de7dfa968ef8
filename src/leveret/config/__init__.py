"""Every setting of a node, declared once, and the frozen tree they are read into.

`leveret.conf` has RabbitMQ's form and key names, so an operator's file mostly works as it is. What
a key means, takes and defaults to stands in `sections` (`listeners`, `access`, `limits`, ...) and
nowhere else: errors, `--print-config` and `docs/configuration.md` are made from it. Slices of the tree are
passed down; nobody imports a setting.
"""

from __future__ import annotations

from leveret.config.kinds import Address
from leveret.config.sections.replication import SchemaSyncSettings
from leveret.config.settings import Setting
from leveret.config.sources import build, config_files, gather, load, render, unknown_variables
from leveret.config.tree import SETTINGS, Config

__all__ = [
    "SETTINGS",
    "Address",
    "Config",
    "SchemaSyncSettings",
    "Setting",
    "build",
    "config_files",
    "gather",
    "load",
    "render",
    "unknown_variables",
]
