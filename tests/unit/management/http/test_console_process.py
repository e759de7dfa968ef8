from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from leveret.config import load
from leveret.management.http import console_process
from leveret.management.http.console_process import console_arguments, console_url, keep_console
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


CERTIFICATE = {"management.ssl.certfile": "/c.pem", "management.ssl.keyfile": "/k.pem"}
OPEN = {"management.console.ip": "0.0.0.0", **CERTIFICATE}


def test_a_console_for_other_machines_has_the_certificate_of_the_http_api() -> None:
    settings = {"cluster_name": "eu", "management.console.names.1": "mq1.example", **OPEN}
    arguments = console_arguments(load(None, settings), 7)
    assert arguments == [
        "console", "--site", "eu=http://127.0.0.1:7", "--listen", "0.0.0.0:15680", "--certfile", "/c.pem",
        "--keyfile", "/k.pem", "--name", "mq1.example", "--end-with-stdin",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"management.console.ip": "0.0.0.0"}, "clear text: set management.ssl.certfile"),
        (
            {"management.console.ip": "10.0.0.7", "management.ssl.certfile": "/c.pem"},
            "management.ssl.keyfile",
        ),
        ({**OPEN, "management.ssl.password": "hidden"}, "management.ssl.password"),
        (
            {**OPEN, "management.ssl.verify": "verify_peer", "management.ssl.fail_if_no_peer_cert": "true"},
            "fail_if_no_peer_cert",
        ),
    ],
)
def test_a_console_that_would_be_less_safe_than_the_http_api_is_a_wrong_setting(
    settings: dict[str, str], text: str, tmp_path: Path
) -> None:
    file = tmp_path / "leveret.conf"
    file.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=text) as caught:
        console_arguments(load(file), 7)
    assert "hidden" not in str(caught.value)


async def test_a_console_that_could_not_be_started_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that is short of descriptors or memory may have both later."""
    second = asyncio.Event()

    async def start(*arguments: object, **options: object) -> None:
        if caplog.records:
            second.set()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(console_process, "_RETRY_S", (0.0,))
    keeping = asyncio.create_task(keep_console(load(None), 7))
    await asyncio.wait_for(second.wait(), 20)
    keeping.cancel()
    assert "Too many open files" in caplog.text


@pytest.mark.parametrize(
    ("settings", "host", "is_local", "url"),
    [
        ({}, "localhost", True, "http://localhost:15680/"),
        ({}, "::1", True, "http://[::1]:15680/"),
        ({}, "10.0.0.7", True, None),
        ({}, "localhost", False, None),
        (OPEN, "10.0.0.7", False, "https://10.0.0.7:15680/"),
        (OPEN, "localhost", True, "https://127.0.0.1:15680/"),
        (OPEN, "mq1.example", False, None),
        (
            {**OPEN, "management.console.names.1": "mq1.example"},
            "mq1.example",
            False,
            "https://mq1.example:15680/",
        ),
        ({**OPEN, "management.console.ip": "10.0.0.7"}, "10.0.0.7", False, "https://10.0.0.7:15680/"),
        ({**OPEN, "management.console.ip": "10.0.0.7"}, "10.0.0.8", False, None),
        ({**OPEN, "management.console.ip": "10.0.0.7"}, "localhost", True, "https://10.0.0.7:15680/"),
    ],
)
def test_a_browser_is_led_to_a_console_that_it_can_reach(
    settings: dict[str, str], host: str, is_local: bool, url: str | None
) -> None:
    assert console_url(load(None, settings).management, host, is_local=is_local) == url
