"""Files that only their owner may read: documents, and JSON arrays, written item by item."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from leveret.cli import exits
from leveret.cli.api import CtlError


def write_array(path: Path | None, items: Iterable[Any]) -> int:
    """Write to a file that only its owner may read, or to standard output; return the number of items.

    The file appears once it is complete; until then a previous one of that name stays.

    Raises:
        CtlError: the name belongs to something other than a file. OSError: it cannot be written.
    """
    if path is None:
        return _write(sys.stdout.buffer, items)
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise CtlError(exits.DATA, f"Bad argument: {path} is not a file")
    with private_file(path) as out:
        return _write(out, items)


@contextmanager
def private_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file that only its owner may read; it takes the place of an existing one at the end of the context.

    Raises:
        OSError: it cannot be written; the existing one stays.
    """
    path = path.resolve()
    # A process id comes again, in a container with each run, and a killed run may have left its file.
    descriptor, name = tempfile.mkstemp(".part", f".{path.name}.", path.parent)
    part = Path(name)
    try:
        with open(descriptor, "wb") as out:
            yield out
            out.flush()
            os.fsync(descriptor)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _write(out: IO[bytes], items: Iterable[Any]) -> int:
    encode = msgspec.json.Encoder().encode
    count = 0
    out.write(b"[")
    for count, item in enumerate(items, 1):
        out.write(b",\n" if count > 1 else b"\n")
        out.write(encode(item))
    out.write(b"\n]\n")
    out.flush()
    return count
