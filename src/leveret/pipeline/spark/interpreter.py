"""The Python interpreter for Spark's own processes on this machine: this one, with the installed modules of Spark.

Spark puts its modules on the path as zip files, in which Python finds no bytecode: every process compiles them anew,
for half a second. A session has a dozen such processes beside the workers, one for each step of planning a query.
Their module cannot be configured, but their interpreter can.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

import pyspark

_SCRIPT: Final = """\
#!/bin/sh
# Python without Spark's zip files on its path.
set -f
IFS=:
rest=
for entry in $PYTHONPATH; do
    case $entry in
    */pyspark.zip | */py4j-*.zip) ;;
    *) rest=$rest${rest:+:}$entry ;;
    esac
done
PYTHONPATH=$rest
exec %s "$@"
"""


def local_python(folder: Path) -> str:
    """An executable, in `folder`, for processes of this machine; this interpreter itself if none can be made."""
    if ".zip" in pyspark.__file__:
        return sys.executable
    script = folder / "python"
    script.write_text(_SCRIPT % shlex.quote(sys.executable))
    script.chmod(0o700)
    # A file system may be mounted without execution.
    return str(script) if os.access(script, os.X_OK) else sys.executable
