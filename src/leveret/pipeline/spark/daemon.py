"""The process from which Spark forks its Python workers; it imports their modules before the first fork.

    python -m leveret.pipeline.spark.daemon <module of the worker>

Spark's own daemon imports next to nothing, so each worker imports Arrow, numpy and our modules by itself, and
collects all their objects as garbage after every task. Here the workers share modules that are imported once. It is
used if Spark runs on this machine alone (`session`); elsewhere the cluster decides.

Spark warns that no thread may run at a fork. None of ours does: `session` prevents numpy's threads, and the thread of
Arrow's memory pool is safe at a fork.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from leveret.pipeline.spark.worker import freeze_modules

WORKER: Final = "pyspark.worker"
"""The module that runs tasks; Spark's other processes run others."""
LOADED: Final = (WORKER, "leveret.pipeline.transfer.sink", "leveret.pipeline.recovery.driver", "pandas")
"""The imported modules; Arrow imports the last one when it meets its first numpy array."""


def main(worker: str) -> None:
    """Fork workers of that module as Spark asks for them, until it ends."""
    if worker == WORKER:
        for name in LOADED:
            import_module(name)
        freeze_modules()
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main(sys.argv[1])
