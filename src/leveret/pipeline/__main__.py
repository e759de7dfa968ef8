"""`python -m leveret.pipeline TASK` (see `TASKS`): job on standard input, events on standard output.

The exit status is 0 after success and 1 after a failure, whose last line is `{"event": "failed", "error": ...}`. A
drained transfer keeps Spark running and waits for `{"command": "recover", "job": {...}}`, or for the end of its
input.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from leveret.model.errors import LeveretError
from leveret.pipeline.jobs.job import (
    BrowseJob,
    ContentsJob,
    DeleteJob,
    ExportJob,
    ForgetJob,
    IdentifyJob,
    InspectJob,
    Job,
    PositionsJob,
    RecoverJob,
    RetireArchiveJob,
    TransferJob,
)
from leveret.pipeline.jobs.parent_channel import ParentChannel
from leveret.pipeline.spark.errors import cause_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RECOVERY: Final = "leveret.pipeline.recovery.driver"
_WITH_SPARK: Final = {
    "transfer": TransferJob,
    "recover": RecoverJob,
    "inspect": InspectJob,
    "export": ExportJob,
}


def _contents(job: ContentsJob) -> dict[str, Any]:
    from leveret.pipeline.archive.contents import contents

    return contents(job.root, with_queues=job.with_queues)


def _browse(job: BrowseJob) -> dict[str, Any]:
    from leveret.pipeline.archive.browse import archived_messages

    rows = archived_messages(
        job.root,
        job.vhost,
        job.queue,
        from_ms=job.from_ms,
        count=job.count,
        body_bytes_max=job.body_bytes_max,
    )
    return {"rows": rows}


def _plans(job: Job) -> dict[str, Any]:
    from leveret.pipeline.archive.contents import unfinished_plans

    return {"rows": unfinished_plans(job.root)}


def _identify(job: IdentifyJob) -> dict[str, Any]:
    from leveret.pipeline.archive.ownership import identify

    return {"archive_id": identify(job.root, job.cluster_id, job.expected)}


def _forget(job: ForgetJob) -> dict[str, Any]:
    from leveret.pipeline.recovery.forget import forget_vhosts

    return {"rows": forget_vhosts(job.root, job.work, job.vhosts, is_shared=job.terms is not None)}


def _delete(job: DeleteJob) -> dict[str, Any]:
    from leveret.pipeline.recovery.forget import delete_all

    delete_all(job.root, job.work)
    return {}


def _retire(job: RetireArchiveJob) -> dict[str, Any]:
    from leveret.pipeline.recovery.forget import retire

    retire(job.root, job.work, job.at_ms)
    return {}


def _positions(job: PositionsJob) -> dict[str, Any]:
    from leveret.pipeline.upstream.positions import ask_positions

    return ask_positions(job)


_ANSWERS: Final[Mapping[str, tuple[type[Any], Callable[[Any], dict[str, Any]]]]] = {
    "contents": (ContentsJob, _contents),
    "browse": (BrowseJob, _browse),
    "plans": (Job, _plans),
    "identify": (IdentifyJob, _identify),
    "forget": (ForgetJob, _forget),
    "delete": (DeleteJob, _delete),
    "set_aside": (RetireArchiveJob, _retire),
    "positions": (PositionsJob, _positions),
}
"""The tasks without Spark: their jobs, and what returns their results."""
TASKS: Final = (*_WITH_SPARK, *_ANSWERS, "warm")
USAGE: Final = f"usage: python -m leveret.pipeline {'|'.join(TASKS)}, with a job in JSON on standard input"


def main() -> None:
    """Run the task that the first argument names."""
    task = sys.argv[1] if len(sys.argv) == 2 else ""
    if task not in TASKS:
        sys.exit(USAGE)
    carry_out(task, ParentChannel())


def carry_out(task: str, parent: ParentChannel) -> NoReturn:
    """Run a task, report its failure, and end the process."""
    try:
        run(task, parent)
    except LeveretError as error:
        parent.say("failed", error=str(error))
        parent.leave(1)
    except msgspec.DecodeError as error:
        parent.say("failed", error=f"the job on standard input is malformed: {error}")
        parent.leave(1)
    except OSError as error:
        # A directory that cannot be made, or a full disk, is reported without a stack trace.
        parent.say("failed", error=_of_a_file(error))
        parent.leave(1)
    except Exception as error:
        # Reported before the stack trace, because the log may be on the full disk that failed.
        parent.say("failed", error=f"{type(error).__name__}: {cause_of(error)}")
        with suppress(OSError):
            traceback.print_exc()
        parent.leave(1)
    parent.leave(0)


def _of_a_file(error: OSError) -> str:
    if error.filename is None:
        return f"{type(error).__name__}: {error}"
    return f"{error.filename}: {error.strerror}; see standby.replication.downstream.data_dir"


def run(task: str, parent: ParentChannel) -> None:
    """Run a task; Spark and Arrow are imported only by tasks that need them."""
    if task == "warm":
        if parent.read_line():
            parent.end_with_parent()
        parent.redirect_output(Path(os.devnull))
        os.nice(19)  # a node that serves clients started this process
        from leveret.pipeline.transfer.class_archive import make_archive

        parent.say("done", archive=str(make_archive()))
    elif task in _WITH_SPARK:
        _run_with_spark(task, parent)
    else:
        shape, answer = _ANSWERS[task]
        parent.say("done", **answer(msgspec.json.decode(parent.read_line(), type=shape)))


def _run_with_spark(task: str, parent: ParentChannel) -> None:
    job = msgspec.json.decode(parent.read_line(), type=_WITH_SPARK[task])
    parent.redirect_output(job.work / "spark" / f"{task}.log")
    parent.end_with_parent()
    if isinstance(job, TransferJob):
        from leveret.pipeline.transfer.driver import run_transfer

        # While Java starts: a promotion must not wait for it.
        Thread(target=_import_recovery, name="import", daemon=True).start()
        spark = run_transfer(job, parent)
        _recover_on_command(parent, spark)
    elif isinstance(job, RecoverJob):
        from leveret.pipeline.recovery.driver import run_recovery

        run_recovery(job, parent)
    elif isinstance(job, ExportJob):
        from leveret.pipeline.table.export import run_export

        run_export(job, parent)
    else:
        from leveret.pipeline.table.inspect import run_inspection

        run_inspection(job, parent)


def _import_recovery() -> None:
    # Arrow imports the last one when it meets its first numpy array.
    for name in (_RECOVERY, "pandas"):
        import_module(name)


def _recover_on_command(parent: ParentChannel, spark: SparkSession) -> None:
    """Wait for a promotion, which follows the end of the transfer and must start fast."""
    from leveret.pipeline.recovery.driver import run_recovery

    command = parent.next_command()
    while command.get("command") != "recover":
        command = parent.next_command()
    run_recovery(msgspec.convert(command["job"], RecoverJob), parent, spark)


if __name__ == "__main__":
    main()
