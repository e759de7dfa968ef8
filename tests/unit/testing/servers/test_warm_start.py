"""A forked program is what `python -m` makes of it: the same words, status, descriptors and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from leveret.testing.network.ports import wait_until
from leveret.testing.servers import warm_start
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.process import ServerProcess
from leveret.testing.servers.warm_start import CTL, NODE, WarmProcess

pytestmark = pytest.mark.process

TIMEOUT_S = 60.0


@pytest.fixture
def node() -> Iterator[LeveretProcess]:
    with LeveretProcess() as one:
        yield one


def descriptors(node: LeveretProcess) -> int:
    return len(list(Path(f"/proc/{node.pid}/fd").iterdir()))


@pytest.mark.parametrize("program", [CTL, NODE])
@pytest.mark.parametrize("arguments", [["--version"], ["nosuch"], [], ["list_queues", "--nosuch"]])
def test_words_and_status_are_those_of_python(program: str, arguments: list[str]) -> None:
    argv = [sys.executable, "-m", program, *arguments]
    expected = subprocess.run(argv, capture_output=True, text=True, check=False)
    ended = warm_start.run(program, arguments, env=os.environ, timeout_s=TIMEOUT_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        expected.returncode,
        expected.stdout,
        expected.stderr,
    )


def test_the_environment_is_the_one_given_and_what_is_read_comes_from_the_caller(
    node: LeveretProcess,
) -> None:
    node.ctl("add_user", "mia", input_text="a password\n")
    assert "mia" in node.ctl("-q", "list_users").stdout
    environment = {**os.environ, "LEVERET_URL": f"http://guest:guest@127.0.0.1:{node.management_port}"}
    assert "mia" in warm_start.run(CTL, ["-q", "list_users"], env=environment, timeout_s=TIMEOUT_S).stdout


def test_a_node_has_no_descriptor_that_a_plain_one_has_not(node: LeveretProcess) -> None:
    with LeveretProcess(environment={"PYTHONUNBUFFERED": "", "PYTHONSAFEPATH": ""}) as plain:
        assert isinstance(node.server._process, WarmProcess)
        assert isinstance(plain.server._process, subprocess.Popen)
        # Those of the connections that asked whether they are ready go soon.
        wait_until(lambda: descriptors(node) == descriptors(plain), "as many descriptors", TIMEOUT_S)


def test_a_node_leads_a_session_and_tells_how_it_ended(node: LeveretProcess) -> None:
    assert os.getsid(node.pid) == node.pid
    node.kill9()
    assert node.server.exit_status == -signal.SIGKILL
    assert node.start().stop() == 0


def test_a_variable_that_python_reads_at_its_start_is_read() -> None:
    with TemporaryFile() as output:
        environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
        process = warm_start.start(CTL, ["--version"], stdout=output, stderr=output, env=environment)
        assert process.wait(TIMEOUT_S) == 0
        output.seek(0)
        assert b"import time:" in output.read()


def test_what_is_forked_from_ends_with_its_owner(tmp_path: Path) -> None:
    owner = ServerProcess(tmp_path / "log")
    code = (
        "import os, subprocess, time\n"
        "from leveret.testing.servers import warm_start\n"
        "warm_start.enable()\n"
        "done = warm_start.run(warm_start.CTL, ['--version'], env=os.environ, timeout_s=60)\n"
        "[parent] = warm_start._parents.values()\n"
        "print('parent', parent._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    owner.launch([sys.executable, "-c", code], os.environ)
    wait_until(lambda: "parent" in owner.log_text(), "a fork", TIMEOUT_S)
    parent = Path("/proc") / owner.log_text().split()[-1]
    assert parent.exists()
    owner.kill9()
    wait_until(lambda: not parent.exists(), "the end of what was forked from", TIMEOUT_S)
