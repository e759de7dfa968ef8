from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from leveret.testing.network.ports import LOOPBACK
from tests.suites.catalogue import INSIDE

pytestmark = pytest.mark.process

# Addresses that belong to nobody: RFC 5737 and RFC 2606.
NOWHERE = "192.0.2.1"
NOBODY = "nobody.invalid"


def inside(program: str, listeners: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program as a suite's pytest would be run."""
    return subprocess.run(
        [sys.executable, "-c", f"import socket, suite_doors\n{program}"],
        env={**os.environ, "PYTHONPATH": str(INSIDE), "SUITE_DOORS": listeners},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (f"socket.create_connection(('{NOWHERE}', 5672), 5)", "gaierror"),
        (f"socket.socket().connect(('{NOWHERE}', 5672))", "ConnectionRefusedError"),
        (f"socket.socket().connect_ex(('{NOWHERE}', 5672))", "ConnectionRefusedError"),
        (f"socket.getaddrinfo('{NOBODY}', 5672)", "gaierror"),
        (f"socket.gethostbyname('{NOBODY}')", "gaierror"),
    ],
)
def test_nothing_beyond_loopback_is_reached_or_looked_up(program: str, error: str) -> None:
    done = inside(program)
    assert done.returncode == 1
    assert error in done.stderr.splitlines()[-1]
    assert "the suites stay on loopback" in done.stderr


@pytest.mark.parametrize("host", [LOOPBACK, "localhost"])
def test_a_usual_port_leads_to_the_broker_under_test(host: str) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        done = inside(f"socket.create_connection(('{host}', 5672), 5)", f"5672={port} 5671=1")
        assert done.returncode == 0, done.stderr
        server.settimeout(5)
        server.accept()[0].close()


def test_any_other_port_of_loopback_is_itself() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        done = inside(f"socket.create_connection(('{LOOPBACK}', {server.getsockname()[1]}), 5)", "5672=1")
        assert done.returncode == 0, done.stderr
