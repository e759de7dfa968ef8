from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.testing.network.ports import NotReady, accepts, speaks_amqp
from leveret.testing.servers.broker import LeveretProcess

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def node() -> Iterator[LeveretProcess]:
    with LeveretProcess() as one:
        yield one


def test_a_started_node_answers_at_its_three_doors(node: LeveretProcess) -> None:
    assert speaks_amqp(node.amqp_port)
    assert accepts(node.stream_port)
    assert accepts(node.management_port)
    assert 0 < node.rss_bytes() < 500_000_000
    assert node.cpu_seconds() > 0.0


def test_leveretctl_reaches_the_node(node: LeveretProcess) -> None:
    assert node.ctl("list_vhosts").returncode == 0


def test_a_killed_node_comes_back_on_the_same_ports(node: LeveretProcess) -> None:
    before = node.pid
    node.kill9()
    assert not accepts(node.amqp_port)
    node.restart()
    assert node.pid != before
    assert speaks_amqp(node.amqp_port)


def test_a_stopped_node_ends_with_status_0_and_keeps_a_given_data_dir(tmp_path: Path) -> None:
    with LeveretProcess(tmp_path / "data", parent_dir=tmp_path) as one:
        assert one.stop() == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


def test_the_callers_settings_win_over_the_chosen_ports(tmp_path: Path) -> None:
    one = LeveretProcess(config={"management.tcp.port": "1", "durability": "os"}, parent_dir=tmp_path)
    try:
        assert one.settings()["management.tcp.port"] == "1"
        assert one.settings()["durability"] == "os"
        assert one.settings()["listeners.tcp.1"] == f"127.0.0.1:{one.amqp_port}"
    finally:
        one.close()


def test_a_node_that_does_not_start_is_reported_with_its_log(tmp_path: Path) -> None:
    one = LeveretProcess(config={"listeners.tcp.1": "nonsense"}, parent_dir=tmp_path)
    try:
        with pytest.raises(NotReady, match=r"listeners\.tcp\.1"):
            one.start()
    finally:
        one.close()
