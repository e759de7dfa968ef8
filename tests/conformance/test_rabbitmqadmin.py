"""RabbitMQ's own HTTP tool, unchanged, on a Leveret node."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from leveret.testing.servers.broker import LeveretProcess

TOOL: Final = shutil.which("rabbitmqadmin")
pytestmark = pytest.mark.skipif(
    TOOL is None, reason="no rabbitmqadmin: `tools/setup test` as root installs it"
)

Admin = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    with LeveretProcess(parent_dir=tmp_path_factory.mktemp("node")) as node:
        login = ["-H", "127.0.0.1", "-P", str(node.management_port), "-u", "guest", "-p", "guest"]

        def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
            argv = [str(TOOL), *login, *arguments]
            return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=check)

        yield run


def listed(admin: Admin, *what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(admin("--format", "raw_json", "list", *what).stdout)
    return found


def test_it_declares_lists_and_deletes(admin: Admin) -> None:
    admin("declare", "vhost", "name=v")
    admin("declare", "exchange", "name=e", "type=topic")
    admin("declare", "queue", "name=q", "durable=true")
    admin("declare", "binding", "source=e", "destination=q", "routing_key=a.b")
    admin("declare", "user", "name=u", "password=p", "tags=administrator")
    admin("declare", "permission", "vhost=v", "user=u", "configure=.*", "write=.*", "read=.*")
    admin(
        "declare",
        "policy",
        "name=p",
        "pattern=^q",
        'definition={"remote-dc-replicate": true}',
        "apply-to=queues",
    )
    admin("declare", "parameter", "component=vhost-limits", "name=limits", 'value={"max-queues": 9}')
    assert {each["name"] for each in listed(admin, "vhosts")} == {"/", "v"}
    [queue] = listed(admin, "queues")
    assert (queue["name"], queue["policy"], queue["messages"]) == ("q", "p", 0)
    assert [each["routing_key"] for each in listed(admin, "bindings") if each["source"] == "e"] == ["a.b"]
    assert {each["name"] for each in listed(admin, "users")} == {"guest", "u"}
    admin("purge", "queue", "name=q")
    admin("delete", "queue", "name=q")
    admin("delete", "vhost", "name=v")
    assert listed(admin, "queues") == []
    assert {each["vhost"] for each in listed(admin, "permissions")} == {"/"}


def test_it_exports_and_imports_definitions(admin: Admin, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    admin("declare", "queue", "name=kept", "durable=true")
    admin("export", str(file))
    admin("delete", "queue", "name=kept")
    admin("import", str(file))
    assert "kept" in {each["name"] for each in listed(admin, "queues")}


def test_it_shows_the_overview_nodes_and_connections(admin: Admin) -> None:
    assert "leveret@" in admin("show", "overview").stdout
    assert len(listed(admin, "nodes")) == 1
    assert listed(admin, "connections") == listed(admin, "channels") == listed(admin, "consumers") == []


def test_it_is_told_what_is_wrong(admin: Admin) -> None:
    admin("declare", "queue", "name=told", "durable=true")
    refused = admin("declare", "queue", "name=told", "durable=false", check=False)
    assert (refused.returncode, "inequivalent arg 'durable'" in refused.stderr + refused.stdout) == (1, True)
    assert admin("declare", "queue", "name=amq.q", check=False).returncode == 1
    assert admin("delete", "queue", "name=nothing", check=False).returncode == 1


def test_it_publishes_gets_and_purges(admin: Admin) -> None:
    admin("declare", "queue", "name=work", "durable=true")
    assert "published" in admin("publish", "exchange=amq.default", "routing_key=work", "payload=hello").stdout
    got = json.loads(admin("--format", "raw_json", "get", "queue=work", "ackmode=ack_requeue_true").stdout)
    assert [each["payload"] for each in got] == ["hello"]
    admin("purge", "queue", "name=work")
    assert (
        json.loads(admin("--format", "raw_json", "get", "queue=work", "ackmode=ack_requeue_true").stdout)
        == []
    )
