"""The process that Spark forks its Python workers from, with all they need loaded before the first fork.

    python -m leveret.pipeline.spark.daemon <module of the worker>

Spark's own loads next to nothing, so each worker loads Arrow, numpy and our modules by itself, and collects all that
as garbage after every task. And Spark puts itself on the path as a zip file, where Python finds no bytecode: every
process compiles it anew, which takes it most of a second. Here the workers share what is loaded once, from where it is
installed. Used where Spark runs on this machine alone (`session`): elsewhere it is the cluster's to say what runs.

Spark warns that no thread may run when it forks. None of ours does: `session` keeps numpy's from being started, and
the one that Arrow's memory pool has is made to be forked beside.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import PurePath
from typing import Final

from leveret.pipeline.spark.worker import spare_modules

WORKER: Final = "pyspark.worker"
"""What runs tasks; Spark's other processes do one thing each."""
LOADED: Final = (WORKER, "leveret.pipeline.transfer.sink", "leveret.pipeline.recovery.driver", "pandas")
"""The last is what Arrow loads when it meets its first array of numpy's."""
_ZIPPED: Final = ("pyspark", "py4j")


def main(worker: str) -> None:
    """Fork workers of that kind as Spark asks for them, until it ends."""
    sys.path[:] = without_zips(sys.path)
    sys.path_importer_cache.clear()
    if worker == WORKER:
        for name in LOADED:
            import_module(name)
        spare_modules()
    import_module("pyspark.daemon").manager()


def without_zips(path: list[str]) -> list[str]:
    """A path without Spark's zip files if it leads to an installed Spark as well, else as it is."""
    rest = [entry for entry in path if not _is_zip(PurePath(entry))]
    return rest if all(PathFinder.find_spec(name, rest) for name in _ZIPPED) else path


def _is_zip(entry: PurePath) -> bool:
    return entry.suffix == ".zip" and entry.name.startswith(_ZIPPED)


if __name__ == "__main__":
    main(sys.argv[1])
