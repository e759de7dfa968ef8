"""Inside the pytest of a suite that starts its broker in a container: the broker is there already.

The suite's conftest asks whether Docker is there and has a client for it; both names are given a
stand-in before the first of its fixtures runs. SUITE_AMQP_PORT and SUITE_AMQPS_PORT say where the
"container" listens.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Final

import pytest

VARIABLES: Final = {"5672/tcp": "SUITE_AMQP_PORT", "5671/tcp": "SUITE_AMQPS_PORT"}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Replace what the suite's conftest has imported; this is called before its own hook."""
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "check_docker_available"):
            plugin.check_docker_available = partial(_this, plugin)
            plugin.DockerClient = StandIn


def _this(conftest: Any) -> Any:
    """What the conftest keeps as the word on where Docker is, and gives to its client."""
    return conftest


class StandIn:
    """What the conftest asks of Docker."""

    def __init__(self, conftest: Any) -> None:
        self._container_info = conftest.ContainerInfo

    def run(self, _image: str, ports: list[str], **_options: Any) -> Any:
        """Say where the broker listens, by the ports that the suite knows."""
        found = {port: int(os.environ[VARIABLES[port]]) for port in ports}
        return self._container_info(id="stand-in", ports=found, host="127.0.0.1")

    def kill(self, _container: str) -> None:
        """Leave the broker to those who started it."""

    def remove(self, _container: str) -> None:
        """Leave the broker to those who started it."""
