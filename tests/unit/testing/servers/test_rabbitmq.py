from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.testing.network.ports import NotReady, accepts, speaks_amqp
from leveret.testing.servers.process import group_members
from leveret.testing.servers.rabbitmq import RabbitNode, available

# Nothing but RabbitMQ, and what starts it: three starts of Erlang, and a change of ours alters no more than a start.
pytestmark = [pytest.mark.process, pytest.mark.oracle]

LOOPBACK_HEX = {"0100007F", "00000000000000000000000001000000"}  # 127.0.0.1 and ::1
PLUGINS = ("rabbitmq_management", "rabbitmq_stream")


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitNode]:
    with RabbitNode(plugins=PLUGINS) as node:
        yield node


def loopback_only(port: int) -> bool:
    """Tell whether the listening sockets of this port are all bound to loopback (from /proc/net)."""
    bound = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                bound.append(address.rpartition(":")[0])
    return bool(bound) and set(bound) <= LOOPBACK_HEX


@pytest.mark.rabbitmq
def test_every_door_of_the_node_answers_on_loopback_alone(rabbit: RabbitNode) -> None:
    assert speaks_amqp(rabbit.amqp_port)
    assert accepts(rabbit.management_port)
    assert accepts(rabbit.stream_port)
    listeners = (rabbit.amqp_port, rabbit.management_port, rabbit.stream_port)
    inner = (rabbit.dist_port, rabbit.epmd_port)
    assert [port for port in listeners + inner if not loopback_only(port)] == []


@pytest.mark.rabbitmq
def test_rabbitmqctl_reaches_this_node_and_no_other(rabbit: RabbitNode) -> None:
    assert rabbit.ctl("-q", "eval", "os:getpid().").stdout.strip() == f'"{rabbit.pid}"'


@pytest.mark.rabbitmq
def test_a_failing_rabbitmqctl_raises_unless_asked_not_to(rabbit: RabbitNode) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        rabbit.ctl("delete_vhost", "nowhere")
    assert rabbit.ctl("delete_vhost", "nowhere", check=False).returncode != 0


@pytest.mark.rabbitmq
def test_what_was_declared_is_there_after_a_crash_and_nothing_is_left_after_closing() -> None:
    with RabbitNode() as node:
        node.ctl("add_vhost", "kept")
        node.kill9()
        assert not accepts(node.amqp_port)
        node.restart()
        assert "kept" in node.ctl("-q", "list_vhosts").stdout
        group = node.pid
    assert group_members(group) == []
    assert not accepts(node.epmd_port)
    assert not node.home.exists()


def test_a_machine_without_rabbitmq_gets_a_reason_and_no_riddle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RABBITMQ_SBIN", str(tmp_path))
    assert "install the package rabbitmq-server" in (available() or "")
    with pytest.raises(NotReady, match="no RabbitMQ in"), RabbitNode(parent_dir=tmp_path):
        raise AssertionError("it started")
    assert list(tmp_path.iterdir()) == []
