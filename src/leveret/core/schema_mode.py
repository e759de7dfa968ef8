"""Which side of schema replication a node or a cluster is: what an operator decided at run time."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Mode(StrEnum):
    """Which side of a link a node is."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"
    NONE = "none"


class Decided(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operator decided; it wins over the configuration. Without a mode that of the configuration holds."""

    enabled: bool = True
    operating_mode: Mode | None = None
