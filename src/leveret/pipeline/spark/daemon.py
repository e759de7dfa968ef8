"""The process that Spark forks its Python workers from, with all they need loaded before the first fork.

    python -m leveret.pipeline.spark.daemon <module of the worker>

Spark's own loads next to nothing, so each worker loads Arrow, numpy and our modules by itself, and collects all that
as garbage after every task. Here the workers share what is loaded once. Used where Spark runs on this machine alone
(`session`): elsewhere it is the cluster's to say what runs.

Spark warns that no thread may run when it forks. None of ours does: `session` keeps numpy's from being started, and
the one that Arrow's memory pool has is made to be forked beside.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from leveret.pipeline.spark.worker import spare_modules

WORKER: Final = "pyspark.worker"
"""What runs tasks; Spark's other processes do one thing each."""
LOADED: Final = (WORKER, "leveret.pipeline.transfer.sink", "leveret.pipeline.recovery.driver", "pandas")
"""The last is what Arrow loads when it meets its first array of numpy's."""


def main(worker: str) -> None:
    """Fork workers of that kind as Spark asks for them, until it ends."""
    if worker == WORKER:
        for name in LOADED:
            import_module(name)
        spare_modules()
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main(sys.argv[1])
