"""One target under atheris, Google's coverage-guided fuzzer for Python; `tests.fuzz` starts it as a process.

usage: python -m tests.fuzz.guided TARGET FAILED LIBFUZZER_ARGUMENTS...

atheris instruments the byte code of what is imported here, hands in inputs, keeps those that reach new
code, and ends the process with the first input that raises, takes too long or too much memory. That
input is put into the directory FAILED, as `crash-`, `timeout-` or `oom-` and a digest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["leveret", "pamqp"]):
    from tests.fuzz.catalogue import TARGETS


def main() -> None:
    """Fuzz until libFuzzer's limits are reached."""
    program, name, failed, *arguments = sys.argv
    target = TARGETS[name]

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
