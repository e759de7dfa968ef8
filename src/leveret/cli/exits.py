"""Exit statuses of `sysexits.h` and RabbitMQ's tools."""

from __future__ import annotations

from typing import Final

OK: Final = 0
USAGE: Final = 64
DATA: Final = 65
NO_USER: Final = 67
UNAVAILABLE: Final = 69
SOFTWARE: Final = 70
SYSTEM: Final = 71
INPUT_OUTPUT: Final = 74
RETRY: Final = 75
NO_PERMISSION: Final = 77
CONFIG: Final = 78
FORCED: Final = 143
"""128 and SIGTERM: a node that got a second signal."""
