"""All settings of a node, declared once, and the frozen tree that holds their values.

`leveret.conf` has RabbitMQ's form and key names, so an operator's file mostly works unchanged. The meaning, the kind
and the default of a key stand in `sections` (`listeners`, `access`, `limits`, ...) only: errors, `--print-config` and
`docs/configuration.md` are made from there. Callers pass slices of the tree down; no module imports a setting.
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
