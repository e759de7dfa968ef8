"""Queues that are made anew with the same definition, as an operator has a crashed queue begin anew."""

from __future__ import annotations

import msgspec

from leveret.model import definitions as d


def is_next_incarnation(wanted: d.Queue, existing: d.Queue) -> bool:
    """Whether the wanted queue differs from the existing one in the epoch alone."""
    return wanted.epoch not in (0, existing.epoch) and wanted == msgspec.structs.replace(
        existing, epoch=wanted.epoch
    )
