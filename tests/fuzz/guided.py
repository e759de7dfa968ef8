"""One target under atheris, Google's coverage-guided fuzzer for Python; `tests.fuzz` starts it as a process.

usage: python -m tests.fuzz.guided TARGET FAILED LIBFUZZER_ARGUMENTS...

atheris instruments the byte code of what is imported here, hands in inputs, keeps those that reach new
code, and ends the process with the first input that raises, takes too long or too much memory. That
input is put into the directory FAILED, as `crash-`, `timeout-` or `oom-` and a digest.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Final

import atheris

from tests.fuzz.target import Target

ROOMS: Final = {
    "codecs": "CODECS",
    "sessions": "SESSIONS",
    "replication": "REPLICATION",
    "documents": "DOCUMENTS",
}
"""Modules of targets and the names of their lists, the quickest to import first: instrumenting takes its time."""


def find(name: str) -> Target:
    """The target, with the code that it reaches instrumented."""
    for module, targets in ROOMS.items():
        with atheris.instrument_imports(include=["leveret", "pamqp"]):
            room = importlib.import_module(f"tests.fuzz.{module}")
        for target in getattr(room, targets):
            if target.name == name:
                return target  # type: ignore[no-any-return]  # lists of targets, by their names
    raise LookupError(name)


def main() -> None:
    """Fuzz until libFuzzer's limits are reached."""
    program, name, failed, *arguments = sys.argv
    target = find(name)

    def run(octets: bytes) -> None:
        try:
            target.run(octets)
        except Exception:
            # On a busy machine libFuzzer's own alarm may end the process before it has written it.
            Path(failed, "crash-input").write_bytes(octets)
            raise

    atheris.Setup([program, f"-artifact_prefix={failed}/", *arguments], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
