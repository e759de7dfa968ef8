"""What every test gets: Hypothesis profiles, Spark's tests in one worker, no run of nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

CONFORMANCE = Path(__file__).parent / "conformance"
REMEDY = "`tools/setup test`, run as root, installs it"
RABBITMQ_SERVER = shutil.which("rabbitmq-server", path="/usr/sbin:/usr/lib/rabbitmq/bin")

# A run is the same every time, so a red test is the change's fault; new cases are `make fuzz`'s task.
settings.register_profile("quick", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "fuzz",
    max_examples=5_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("quick")


# First, because pytest-xdist reads the groups and pytest the markers in this same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if CONFORMANCE in item.path.parents:
            item.add_marker(pytest.mark.conformance)
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
        if item.get_closest_marker("rabbitmq") and RABBITMQ_SERVER is None:
            item.add_marker(
                pytest.mark.skip(reason="no rabbitmq-server: `tools/setup test` as root installs it")
            )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        terminalreporter.write_line("Not one test was selected, and that counts as a failure.", red=True)
