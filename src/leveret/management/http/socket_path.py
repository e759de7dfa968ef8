"""The path of the node's own socket, in a short form for directories with long names.

The kernel takes 107 octets for a socket's path; through an open directory's entry in `/proc` any
directory has a short name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CONTROL_SOCKET: Final = "control.sock"


@contextmanager
def short_path(data_dir: Path) -> Iterator[str]:
    """A short path of the control socket, valid while the context lasts.

    Raises:
        OSError: the data directory cannot be opened.
    """
    descriptor = os.open(data_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{CONTROL_SOCKET}"
    finally:
        os.close(descriptor)
