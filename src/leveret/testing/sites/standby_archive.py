"""Archives and recovery plans in a standby's data directory, made from an upstream without Spark."""

from __future__ import annotations

from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.recovery_plan import PlanDirectory, RecoveryPlan, read_order
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.archive.stored_positions import stored_positions_at
from leveret.pipeline.files.files import Place
from leveret.pipeline.jobs.job import EVERYTHING, Selection
from leveret.pipeline.recovery.counting import with_unsettled
from leveret.pipeline.recovery.unsettled import (
    NumberedFile,
    UnsettledMessages,
    not_to_recover,
    write_run,
)
from leveret.testing.sites.standby_upstream import StandbyUpstream


def transfer(upstream: StandbyUpstream, data_dir: Place, *, chunks_per_file: int = 40) -> Manifest:
    """Store the chunks of the upstream that the data directory lacks; return the manifest."""
    manifest = Manifest(data_dir)
    for vhost, log in upstream.logs.items():
        have = manifest.next_by_log.get(vhost, 0)
        chunks = log.read(have, 1 << 40) if have < log.committed_offset else []
        for first in range(0, len(chunks), chunks_per_file):
            file = store_range(data_dir, vhost, chunks[first : first + chunks_per_file])
            assert file is not None
            manifest.append([file])
    return manifest


def freeze_plan(
    manifest: Manifest, vhost: str, selection: Selection = EVERYTHING, plans: str = "plans"
) -> PlanDirectory | None:
    """Find the unsettled messages of a vhost and freeze their plan; None if there can be none."""
    masks = not_to_recover(manifest, vhost, selection, plans)
    files = with_unsettled(manifest.files_of(vhost), masks, selection)
    if not files:
        return None
    directory = PlanDirectory.new(manifest.data_dir, vhost, plans)
    found = UnsettledMessages([], {})
    for number, file in enumerate(files):
        run = directory.runs / f"{number}.arrow"
        mine = [NumberedFile(number, file.path, file.records)]
        some = write_run(manifest.data_dir, vhost, mine, masks, run, selection)
        found.add(some)
    counted, doubtful = found.counted()
    for queue in doubtful:
        parts = [part for part in found.parts if part.queue == queue]
        counted[queue] = len(read_order(directory.runs, parts))
    plan = RecoveryPlan(
        plan_id=directory.path.name,
        vhost=vhost,
        number=manifest.number,
        selection=selection,
        files=[file.path for file in files],
        parts=found.parts,
        unreadable=found.unreadable,
        messages=counted,
        stored_positions=list(stored_positions_at(manifest, vhost, selection.as_of_ms).values()),
    )
    directory.freeze(plan)
    return directory
