"""The modules that a worker of a remote Spark lacks, found by the worker itself.

A worker without the wheels can import this module: it needs Python alone, and so do the packages above it.
"""

from __future__ import annotations

import os
import socket
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Final, NamedTuple

WHEELS: Final = ("hdfs_native", "isal", "msgspec", "numpy", "obstore", "pamqp", "pandas", "pyarrow")
"""The modules that tasks import beside Spark and this package."""
USED: Final = (
    "leveret.pipeline.transfer.sink",
    "leveret.pipeline.transfer.source",
    "leveret.pipeline.recovery.driver",
    "leveret.pipeline.table.source",
)


class WorkerModules(NamedTuple):
    """One worker: its machine, its Python, and the modules that it lacks."""

    host: str
    python: str
    missing: list[str]


def find_missing_modules(store: str | None) -> WorkerModules:
    """The modules that this worker's machine lacks."""
    missing = [f"the Python module {name}" for name in WHEELS if find_spec(name) is None]
    if not missing:
        for name in USED:
            try:
                import_module(name)
            except ImportError as error:
                missing.append(f"{name} ({error})")
    if store is not None and not os.access(store, os.W_OK):
        missing.append(f"the directory {store}, which all of them have to share and may write")
    return WorkerModules(socket.gethostname(), sys.executable, missing)
