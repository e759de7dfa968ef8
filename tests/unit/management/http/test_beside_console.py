from __future__ import annotations

import pytest

from leveret.config import load
from leveret.management.http.beside_console import console_arguments
from leveret.model.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "site", "listen"),
    [
        ({}, "eu.1=http://127.0.0.1:7", "127.0.0.1:15680"),
        ({"management.tcp.ip": "0.0.0.0"}, "eu.1=http://127.0.0.1:7", "127.0.0.1:15680"),
        ({"management.tcp.ip": "::", "management.console.port": "9"}, "eu.1=http://[::1]:7", "[::1]:9"),
        ({"management.path_prefix": "/mq"}, "eu.1=http://127.0.0.1:7/mq", "127.0.0.1:15680"),
        ({"cluster_name": "eu west/1"}, "eu-west-1=http://127.0.0.1:7", "127.0.0.1:15680"),
    ],
)
def test_the_console_of_a_node_asks_the_node_on_loopback(
    settings: dict[str, str], site: str, listen: str
) -> None:
    arguments = console_arguments(load(None, {"cluster_name": "eu.1", **settings}), 7)
    assert arguments == ["console", "--site", site, "--listen", listen, "--end-with-stdin"]


def test_a_console_that_could_not_reach_its_node_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match=r"management\.tcp\.ip"):
        console_arguments(load(None, {"management.tcp.ip": "10.0.0.7"}), 7)
