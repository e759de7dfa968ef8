"""Run-time decisions of an operator on schema replication."""

from __future__ import annotations

import msgspec

from leveret.core.schema.operating_mode import OperatingMode


class SchemaDecided(msgspec.Struct, frozen=True, omit_defaults=True):
    """The decision of an operator, which overrides the configuration. Without a mode, the configured mode holds."""

    enabled: bool = True
    operating_mode: OperatingMode | None = None
