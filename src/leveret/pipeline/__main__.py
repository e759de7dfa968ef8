"""`python -m leveret.pipeline TASK` (see `TASKS`): job on standard input, events on standard output.

The exit status is 0 after success and 1 after a failure, whose last line is `{"event": "failed", "error": ...}`. A
drained transfer keeps Spark running and waits for `{"command": "recover", "job": {...}}`, or for the end of its
input.
"""

from __future__ import annotations

import os
import sys
import traceback
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

TASKS: Final = (
    "transfer",
    "recover",
    "contents",
    "browse",
    "plans",
    "identify",
    "inspect",
    "export",
    "forget",
    "delete",
    "set_aside",
    "positions",
    "warm",
)
_RECOVERY: Final = "leveret.pipeline.recovery.driver"
_WITH_SPARK: Final = {
    "transfer": TransferJob,
    "recover": RecoverJob,
    "inspect": InspectJob,
    "export": ExportJob,
}
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
        parent.say("done", **_answer(task, parent.read_line()))


def _answer(task: str, line: bytes) -> dict[str, Any]:
    """The result of a task without Spark."""
    if task == "contents":
        from leveret.pipeline.archive.contents import contents

        wanted = msgspec.json.decode(line, type=ContentsJob)
        return contents(wanted.root, with_queues=wanted.with_queues)
    if task == "browse":
        from leveret.pipeline.archive.browse import archived_messages

        look = msgspec.json.decode(line, type=BrowseJob)
        rows = archived_messages(
            look.root,
            look.vhost,
            look.queue,
            from_ms=look.from_ms,
            count=look.count,
            body_bytes_max=look.body_bytes_max,
        )
        return {"rows": rows}
    if task == "plans":
        from leveret.pipeline.archive.contents import unfinished_plans

        return {"rows": unfinished_plans(msgspec.json.decode(line, type=Job).root)}
    if task == "identify":
        from leveret.pipeline.archive.ownership import identify

        asked = msgspec.json.decode(line, type=IdentifyJob)
        return {"archive_id": identify(asked.root, asked.cluster_id, asked.expected)}
    if task == "positions":
        from leveret.pipeline.upstream.positions import ask_positions

        return ask_positions(msgspec.json.decode(line, type=PositionsJob))
    from leveret.pipeline.recovery.forget import delete_all, forget_vhosts, retire

    if task == "forget":
        forget = msgspec.json.decode(line, type=ForgetJob)
        return {
            "rows": forget_vhosts(forget.root, forget.work, forget.vhosts, is_shared=forget.terms is not None)
        }
    if task == "delete":
        job = msgspec.json.decode(line, type=DeleteJob)
        delete_all(job.root, job.work)
    else:
        retired = msgspec.json.decode(line, type=RetireArchiveJob)
        retire(retired.root, retired.work, retired.at_ms)
    return {}


def _run_with_spark(task: str, parent: ParentChannel) -> None:
    job = msgspec.json.decode(parent.read_line(), type=_WITH_SPARK[task])
    parent.redirect_output(job.work / "spark" / f"{task}.log")
    parent.end_with_parent()
    if isinstance(job, TransferJob):
        from leveret.pipeline.transfer.driver import run_transfer

        # While Java starts: a promotion must not wait for it.
        Thread(target=import_module, args=[_RECOVERY], name="import", daemon=True).start()
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


def _recover_on_command(parent: ParentChannel, spark: SparkSession) -> None:
    """Wait for a promotion, which follows the end of the transfer and must start fast."""
    from leveret.pipeline.recovery.driver import run_recovery

    command = parent.next_command()
    while command.get("command") != "recover":
        command = parent.next_command()
    run_recovery(msgspec.convert(command["job"], RecoverJob), parent, spark)


if __name__ == "__main__":
    main()
