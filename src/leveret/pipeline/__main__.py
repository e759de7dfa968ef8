"""`python -m leveret.pipeline TASK` (see `TASKS`): job on standard input, news on standard output.

Exit status 0 when done, 1 with a last line `{"event": "failed", "error": ...}` when not.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Final

import msgspec

from leveret.model.errors import LeveretError
from leveret.pipeline.console import Console
from leveret.pipeline.job import ForgetJob, InspectJob, LookJob, PositionsJob, RecoverJob, TransferJob
from leveret.pipeline.spark_error import cause_of

TASKS: Final = ("transfer", "recover", "look", "inspect", "forget", "positions", "warm")
USAGE: Final = f"usage: python -m leveret.pipeline {'|'.join(TASKS)}, with a job in JSON on standard input"


def main() -> None:
    """Run what the first argument names."""
    task = sys.argv[1] if len(sys.argv) == 2 else ""
    if task not in TASKS:
        sys.exit(USAGE)
    console = Console()
    try:
        run(task, console)
    except LeveretError as error:
        console.say("failed", error=str(error))
        console.leave(1)
    except msgspec.DecodeError as error:
        console.say("failed", error=f"the job on standard input is malformed: {error}")
        console.leave(1)
    except Exception as error:
        traceback.print_exc()
        console.say("failed", error=f"{type(error).__name__}: {cause_of(error)}")
        console.leave(1)
    console.leave(0)


def run(task: str, console: Console) -> None:
    """Do the task; Spark and Arrow are imported only by those that need them."""
    if task == "warm":
        if console.read_line():
            console.end_with_parent()
        console.chatter_to(Path(os.devnull))
        from leveret.pipeline.warm import make_archive

        console.say("done", archive=str(make_archive()))
        return
    line = console.read_line()
    if task == "look":
        look_job = msgspec.json.decode(line, type=LookJob)
        from leveret.pipeline.look import look

        console.say("done", **look(look_job.root))
        return
    if task == "positions":
        from leveret.pipeline.positions import ask_positions

        console.say("done", positions=ask_positions(msgspec.json.decode(line, type=PositionsJob)))
        return
    if task == "inspect":
        inspect_job = msgspec.json.decode(line, type=InspectJob)
        console.chatter_to(inspect_job.root / "spark" / "inspect.log")
        console.end_with_parent()
        from leveret.pipeline.inspect import run_inspection

        console.say("done", rows=run_inspection(inspect_job))
        return
    if task == "forget":
        forget_job = msgspec.json.decode(line, type=ForgetJob)
        from leveret.pipeline.forget import forget_vhosts

        console.say("done", rows=forget_vhosts(forget_job.root, forget_job.vhosts))
        return
    job: TransferJob | RecoverJob
    if task == "transfer":
        job = msgspec.json.decode(line, type=TransferJob)
    else:
        job = msgspec.json.decode(line, type=RecoverJob)
    console.chatter_to(job.root / "spark" / f"{task}.log")
    console.end_with_parent()
    if isinstance(job, TransferJob):
        from leveret.pipeline.transfer import run_transfer

        run_transfer(job, console)
    else:
        from leveret.pipeline.recovery import run_recovery

        run_recovery(job, console)


if __name__ == "__main__":
    main()
