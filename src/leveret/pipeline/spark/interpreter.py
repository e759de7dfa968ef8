"""The Python that Spark starts its own processes with, here: this one, with the installed modules of Spark.

Spark puts its modules on the path as zip files, where Python finds no bytecode: every process compiles them anew, for
half a second. A session has a dozen such processes beside the workers, one for each step of planning a query; which
module they run cannot be configured, which interpreter can.
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
    """An executable, in `folder`, for processes of this machine; this very interpreter where none can be made."""
    if ".zip" in pyspark.__file__:
        return sys.executable
    script = folder / "python"
    script.write_text(_SCRIPT % shlex.quote(sys.executable))
    script.chmod(0o700)
    # Nothing can be executed where a file system is mounted so.
    return str(script) if os.access(script, os.X_OK) else sys.executable
