from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.testing.network.ports import NotReady, wait_until
from leveret.testing.servers.process import ServerProcess, descendants, group_members

pytestmark = pytest.mark.process

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPER
WITH_CHILD = (
    "import subprocess, sys, time;"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print('up', flush=True); time.sleep(60)"
)
WITH_SESSION = WITH_CHILD.replace("])", "], start_new_session=True)")
OWNER = """
import os, sys
from pathlib import Path
from leveret.testing.servers.process import ServerProcess
server = ServerProcess(Path(sys.argv[1]))
server.launch([sys.executable, "-c", "import time; time.sleep(60)"], os.environ)
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    one = ServerProcess(tmp_path / "log")
    yield one
    one.kill9()


def launch(server: ServerProcess, program: str) -> None:
    server.launch([sys.executable, "-c", program], os.environ)
    wait_until(lambda: "up" in server.log_text(), "the child", 30)


def test_a_killed_process_takes_its_children_along(server: ServerProcess) -> None:
    launch(server, WITH_CHILD)
    wait_until(lambda: len(group_members(server.pid)) == 2, "the grandchild", 30)
    server.kill9()
    assert server.exit_status == -signal.SIGKILL
    assert group_members(server.pid) == []


def test_a_child_with_its_own_session_outlives_a_crash_but_not_the_closing(server: ServerProcess) -> None:
    launch(server, WITH_SESSION)
    wait_until(lambda: len(descendants(server.pid)) == 1, "the grandchild", 30)
    [(grandchild, _)] = descendants(server.pid)
    server.kill9()
    assert group_members(grandchild) == [grandchild]
    server.close(grace_s=0.1)
    assert group_members(grandchild) == []


def test_termination_returns_the_exit_status(server: ServerProcess) -> None:
    launch(server, SLEEPER)
    assert server.terminate(20.0) == -signal.SIGTERM
    assert not server.alive


def test_a_process_that_ignores_sigterm_is_killed_and_reported(server: ServerProcess) -> None:
    launch(server, STUBBORN)
    with pytest.raises(NotReady, match=r"ignored SIGTERM for 0\.1 s"):
        server.terminate(0.1)
    assert not server.alive


def test_a_process_that_ended_is_reported_with_the_end_of_its_log(server: ServerProcess) -> None:
    server.launch([sys.executable, "-c", "print('no disk'); raise SystemExit(78)"], os.environ)
    wait_until(lambda: not server.alive, "its end", 30)
    with pytest.raises(NotReady, match=r"(?s)status 78.*no disk"):
        server.assert_alive()


def test_the_log_of_an_earlier_start_is_kept(server: ServerProcess) -> None:
    launch(server, SLEEPER)
    server.kill9()
    server.launch([sys.executable, "-c", "print('again')"], os.environ)
    wait_until(lambda: not server.alive, "its end", 30)
    assert server.log_text() == "up\nagain\n"


def test_memory_and_processor_time_are_those_of_the_process(server: ServerProcess) -> None:
    filled = "block = b'x' * 100_000_000; sum(range(3_000_000));" + SLEEPER
    launch(server, filled)
    assert 100_000_000 < server.rss_bytes() < 200_000_000
    assert server.rss_bytes_peak() >= server.rss_bytes()
    assert 0.0 < server.cpu_seconds() < 20.0


def test_a_process_whose_owner_is_killed_does_not_stay_behind(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", OWNER, str(tmp_path / "log")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        assert group_members(child) == [child]
        owner.kill()
        wait_until(lambda: group_members(child) == [], "the guard", 30)
