"""Tells files that the manifest named once from files that it never named.

A writer that dies leaves files that no entry names. Their records come again, so a sweep deletes them. A manifest that
was restored from a copy does not name the files of later entries either. They may have the only copy of their records,
so they stay until the files that the manifest names have these records, too.

Permissions tell the two apart, because they survive a copy of the archive: a file is for this user alone (0600) until
an entry names it, and for its group from then on (0640), in a directory that is for this user alone. A crash between
the two leaves a file that is not protected, as those of earlier versions are. Objects in a store have no permissions;
there each entry is an object of its own, and an older manifest is one of which entries were deleted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from leveret.model.moment import moment_text
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.store import DATA
from leveret.pipeline.files.files import Place, name_in, sweepable, vhost_directory, was_named

_NAME: Final = re.compile(r"(\d{20})-(\d{20})([^.]*)\.")
_TERM: Final = re.compile(r"-t\d+$")


class _Range(NamedTuple):
    """The records in a file, by its path: of a log, from an offset to before another."""

    log: tuple[str, str]
    first: int
    next: int


def once_named(manifest: Manifest, wants: Callable[[str], bool] = lambda vhost: True) -> list[Place]:
    """The files that hold records which the manifest has lost, in order; none if it is not an older copy.

    `wants` says of which vhosts they are wanted. Those of a vhost whose name is not known are. The manifest is read on:
    a transfer, or a compaction, may name files meanwhile.
    """
    if not isinstance(manifest.data_dir, Path):
        return []
    # A file that is replaced during the first look is neither there nor covered.
    return _look(manifest, wants) and _look(manifest, wants)


def _look(manifest: Manifest, wants: Callable[[str], bool]) -> list[Place]:
    places = [place for place in sweepable(manifest.data_dir / DATA) if was_named(place)]
    # A file is named before that is noted on it.
    manifest.refresh()
    known = {name for file in manifest.files() for name in file.names}
    unknown = [place for place in places if name_in(manifest.data_dir, place) not in known]
    unwanted = {
        vhost_directory(vhost)
        for vhost in {*manifest.vhosts, *manifest.forgotten_by_vhost}
        if not wants(vhost)
    }
    lost = lost_among(manifest, [each for each in unknown if each.parent.name not in unwanted])
    return sorted(lost, key=str)


def lost_among(manifest: Manifest, unknown: Iterable[Place]) -> set[Place]:
    """Those of these files, which the manifest does not name, that it named once and whose records it lacks now."""
    marked = {place: found for place in unknown if was_named(place) and (found := _range_of(place))}
    if not marked:
        return set()
    there = _there(manifest, {found.log for found in marked.values()})
    # A vhost that was forgotten was to have no files.
    gone = {vhost_directory(vhost) for vhost in {*manifest.forgotten_by_vhost} - {*manifest.vhosts}}
    return {
        place
        for place, found in marked.items()
        if found.log[0] not in gone and not _covers(there.get(found.log, []), found)
    }


def title_of_lost(manifest: Manifest, lost: list[Place]) -> str:
    """A sentence about files whose records the manifest has lost."""
    last = manifest.entries[-1] if manifest.entries else None
    end = f"ends at entry {last.number}, of {moment_text(last.at_ms)}," if last is not None else "is empty"
    return (
        f"{manifest.data_dir / 'manifest'}: {end} and does not name {len(lost)} files that it named once, such as "
        f"{lost[-1]}: it is an older copy, or was deleted; restore a newer copy of it, or move these files away if "
        "their records are not wanted"
    )


def _range_of(place: Place) -> _Range | None:
    found = _NAME.match(place.name)
    if found is None:
        return None
    first, behind, label = found.groups()
    return _Range((place.parent.name, _TERM.sub("", label)), int(first), int(behind))


def _there(manifest: Manifest, logs: set[tuple[str, str]]) -> dict[tuple[str, str], list[_Range]]:
    """The ranges of the named files of these logs that are there, in order."""
    ranges: dict[tuple[str, str], list[_Range]] = {}
    for file in manifest.files():
        place = manifest.data_dir / file.path
        found = _range_of(place)
        if (
            found is not None
            and found.log in logs
            and all((manifest.data_dir / each).exists() for each in file.names)
        ):
            ranges.setdefault(found.log, []).append(found)
    return {log: sorted(found) for log, found in ranges.items()}


def _covers(ranges: list[_Range], wanted: _Range) -> bool:
    at = wanted.first
    for each in ranges:
        if each.first <= at:
            at = max(at, each.next)
    return at >= wanted.next
