from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios

import pytest

from leveret.testing.network.ports import wait_until

pytestmark = pytest.mark.process

PIPE_BYTES = 65_536
TASK = """
from leveret.pipeline.jobs.parent_channel import ParentChannel

ParentChannel().say("planned", queues="q" * 1_000_000)
"""


def test_a_long_line_is_whole_although_the_process_was_stopped_and_continued() -> None:
    """Half a line was no event, so a promotion of many queues failed in a container that was paused (2026-11-29)."""
    with subprocess.Popen([sys.executable, "-c", TASK], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = process.stdout.fileno()

        def is_full() -> bool:
            return bool(struct.unpack("i", fcntl.ioctl(output, termios.FIONREAD, b"1234"))[0] >= PIPE_BYTES)

        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        wait_until(is_full, "the line fills the pipe", 60)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.read().endswith(b'q"}\n')
