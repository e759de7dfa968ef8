"""What operators see and do at a cluster of three nodes: any of them shows it all, and passes on what is another's."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

import httpx
import pytest

from leveret.cli.ctl import _describe, build_app, common_options_first, wanted_command
from leveret.cli.program import run
from leveret.cli.program_aliases import operator_arguments
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from tests.unit.cli.test_guides import MIRRORING

# A busy machine must not cost a node its lease where no test asks for that.
CONFIG = {"cluster.etcd.lease_ttl": "4s"}
Ctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def nodes(site: ClusterSite) -> list[SiteNode]:
    return site.members


@pytest.fixture
def ctl(nodes: list[SiteNode], capsys: pytest.CaptureFixture[str]) -> Ctl:
    """Runs a command at a node: exit status, standard output, standard error without the program's name."""

    def command(node: SiteNode, *arguments: str) -> tuple[int, str, str]:
        words = common_options_first(["--data-dir", str(node.data_dir), "--silent", *arguments])
        status = run(build_app(wanted_command(words)), "leveretctl", _describe, words)
        out, err = capsys.readouterr()
        return status, out, err.removeprefix("leveretctl: ").removesuffix("\n")

    return command


def ask(node: SiteNode, path: str) -> httpx.Response:
    url = f"http://{LOOPBACK}:{node.management_port}/api/{path}"
    return httpx.get(url, auth=("guest", "guest"), trust_env=False, verify=False, timeout=30)


def fill(site: ClusterSite, node: SiteNode, queue: str, count: int = 10) -> None:
    """A queue that this node leads, with messages."""
    with site.channel(node) as channel:
        channel.queue_declare(queue, durable=True)
        for index in range(count):
            channel.basic_publish("", queue, str(index).encode())


def is_in_service(node: SiteNode) -> bool:
    return ask(node, "health/checks/is-in-service").status_code == HTTPStatus.OK


def is_suspended(node: SiteNode) -> bool:
    return ask(node, "health/checks/is-in-service").status_code == HTTPStatus.SERVICE_UNAVAILABLE


def test_any_node_shows_the_whole_cluster(site: ClusterSite, nodes: list[SiteNode], ctl: Ctl) -> None:
    names = {each.node for each in nodes}
    for index, node in enumerate(nodes):
        fill(site, node, f"shown-{index}", count=index + 1)
    for node in nodes:
        rows = {row["name"]: row for row in site.api("GET", "queues", at=node)}
        assert [rows[f"shown-{index}"]["node"] for index in range(3)] == [each.node for each in nodes]
        assert [rows[f"shown-{index}"]["messages"] for index in range(3)] == [1, 2, 3]
        assert {row["name"] for row in site.api("GET", "nodes", at=node) if "mem_used" in row} == names
        assert "leveret-unreachable" not in ask(node, "queues").headers
    overview = site.api("GET", "overview", at=nodes[1])
    assert {each["node"] for each in overview["listeners"] if each["protocol"] == "clustering"} == names
    assert ctl(nodes[1], "list_queues", "name", "--local")[1] == "shown-1\n"
    status, out, _ = ctl(nodes[2], "cluster_status", "--formatter", "json")
    shown = json.loads(out)
    assert status == 0
    assert set(shown["disk_nodes"]) == set(shown["running_nodes"]) == set(shown["versions"]) == names
    assert shown["coordination"]["state"] == "member"
    assert ctl(nodes[0], "await_online_nodes", "3") == (0, "", "")
    assert ctl(nodes[0], "join_cluster", nodes[1].node)[1] == "The node is already a member of this cluster\n"
    running = (
        f"Leveret on node {nodes[1].node} must be stopped with 'leveretctl stop' before it can be removed"
    )
    assert ctl(nodes[0], "forget_cluster_node", nodes[1].node) == (69, "", running)


def test_a_queue_is_synchronised_by_command(site: ClusterSite, nodes: list[SiteNode], ctl: Ctl) -> None:
    leader, other, _ = nodes
    fill(site, leader, "mirrored")
    definition = {"ha-mode": "nodes", "ha-params": [leader.node, other.node], "ha-sync-mode": "manual"}
    site.set_policy("ha", "^mirrored$", definition)
    # It has no mirror that lacks nothing, as nobody was told to give it what was there before.
    site.wait_placed("mirrored", leader, mirrors=[other], synchronised=[])
    lost = (
        "queue 'mirrored' in vhost '/' would lose its only synchronised replica (master) "
        f"if node {leader.node} is stopped"
    )
    status, _, said = ctl(leader, "check_if_node_is_mirror_sync_critical")
    assert (status, lost in said) == (69, True)
    assert ctl(other, "check_if_node_is_mirror_sync_critical")[0] == 0
    with site.channel(other) as channel:
        one_copy = {"x-queue-type": "stream", "x-initial-cluster-size": 1}
        channel.queue_declare("only-here", durable=True, arguments=one_copy)
    critical = ctl(other, "check_if_node_is_mirror_sync_critical")
    assert (critical[0], "queue 'only-here'" in critical[2]) == (69, True), "a stream has no other copy"
    assert ctl(other, "sync_queue", "mirrored") == (0, "", "")
    site.wait_placed("mirrored", leader, mirrors=[other], synchronised=[other])
    for progress in (f"Adding mirror on node {other.node}", f"Mirror on node {other.node} is synchronised"):
        assert f"Mirrored queue 'mirrored' in vhost '/': {progress}\n" in leader.log_text()
    assert ctl(leader, "await_online_synchronized_mirror") == (0, "", "")
    assert ctl(other, "cancel_sync_queue", "mirrored") == (0, "not_syncing\n", "")
    fill(site, leader, "plain")
    assert ctl(other, "sync_queue", "plain") == (69, "", "not_mirrored")
    columns = ("name", "pid", "mirror_pids", "synchronised_slave_pids", "policy")
    listed = ctl(other, "list_queues", *columns)[1].splitlines()
    pid = f"<{other.node}.//mirrored>"
    assert f"mirrored\t<{leader.node}.//mirrored>\t[{pid}]\t[{pid}]\tha" in listed
    text = ask(leader, "../metrics/per-object").text
    assert 'leveret_queue_synchronised_mirrors{vhost="/",queue="mirrored"} 1\n' in text
    enabled = "Policy ha enables classic queue mirroring"
    assert ctl(leader, "check_if_cluster_has_classic_queue_mirroring_policy") == (69, "", enabled)
    assert ctl(leader, "remove_classic_queue_mirroring_from_policies") == (0, "", "")
    site.wait_placed("mirrored", leader, mirrors=None)


def test_the_lines_of_the_guide_to_mirroring_run_as_printed(
    site: ClusterSite, nodes: list[SiteNode], ctl: Ctl
) -> None:
    left = list(MIRRORING)

    def printed(containing: str, at: SiteNode = nodes[0]) -> tuple[int, str]:
        [line] = [each for each in MIRRORING if containing in each]
        if line in left:
            left.remove(line)
        program, *words = shlex.split(line)
        status, out, err = ctl(at, *operator_arguments(f"/usr/local/sbin/{program}", words)[1])
        return status, out + err

    for policy in ("ha-two", "ha-all", "ha-nodes"):
        assert printed(f"set_policy {policy}")[0] == 0
    site.set_policy("named", r"^\{name\}$", {"ha-mode": "all"})
    for queue in ("two.q", "ha.q", "nodes.q", "{name}"):
        fill(site, nodes[0], queue)

    def rows(containing: str) -> dict[str, list[str]]:
        return {row[0]: row[1:] for row in map(_cells, printed(containing, nodes[1])[1].splitlines())}

    def mirrored() -> bool:
        found = rows("synchronised_mirror_pids")
        return [found[name][1].count("@") for name in ("two.q", "ha.q", "{name}")] == [1, 2, 2]

    site.wait(mirrored, "mirrors as the policies say")
    found = rows("name policy pid")
    assert [found[name][0] for name in ("two.q", "ha.q", "nodes.q")] == ["ha-two", "ha-all", "ha-nodes"]
    assert found["nodes.q"][2].count("@") == 0, "its nodes are none of the cluster's"
    assert printed(" sync_queue")[0] == 0
    assert printed("cancel_sync_queue")[0] == 0
    assert printed("check_if_cluster_has")[0] != 0
    listed = printed("list_policies_with_classic")
    assert listed[0] == 0
    assert all(name in listed[1] for name in ("ha-two", "ha-all", "ha-nodes", "named"))
    assert left == []
    for policy in ("ha-two", "ha-all", "ha-nodes", "named"):
        assert ctl(nodes[0], "clear_policy", policy)[0] == 0
    for queue in ("two.q", "ha.q", "nodes.q", "{name}"):
        assert ctl(nodes[0], "delete_queue", queue)[0] == 0


def _cells(line: str) -> list[str]:
    return [*line.split("\t"), "", ""]


def test_a_node_that_is_gone_for_good_is_forgotten(
    site: ClusterSite, nodes: list[SiteNode], ctl: Ctl
) -> None:
    gone, other, third = nodes
    fill(site, gone, "lost")
    fill(site, gone, "dropped")
    fill(site, other, "kept")
    gone.kill9()
    site.wait(lambda: gone.node not in site.members_running(other), "the lease of a node has ended")
    down = f"home node '{gone.node}' of durable queue 'lost' in vhost '/' is down or inaccessible"
    refused = httpx.delete(
        f"http://{LOOPBACK}:{third.management_port}/api/queues/%2F/lost/contents",
        auth=("guest", "guest"),
        trust_env=False,
        verify=False,
    )
    assert (refused.status_code, refused.json()["reason"]) == (HTTPStatus.NOT_FOUND, down)
    site.api("DELETE", "queues/%2F/dropped", at=third)
    assert ask(other, "queues/%2F/dropped").status_code == HTTPStatus.NOT_FOUND
    rows = {row["name"]: row for row in site.api("GET", "nodes", at=third)}
    assert rows[gone.node] == {"name": gone.node, "type": "disc", "running": False, "cluster_links": []}
    status, out, _ = ctl(third, "forget_cluster_node", gone.node)
    assert status == 0
    assert "/\tlost\t(deleted)\t" in out.splitlines()

    def known() -> tuple[set[str], set[str]]:
        """The queues and the nodes, as the other node knows them; it hears of changes from etcd."""
        queues, members = (site.api("GET", path, at=other) for path in ("queues", "nodes"))
        return {row["name"] for row in queues}, {row["name"] for row in members}

    site.wait(lambda: "lost" not in known()[0], "the other node to hear of it")
    assert "kept" in known()[0]
    assert known()[1] == {other.node, third.node}


def test_a_node_whose_end_would_harm_a_queue_is_stopped_by_force_only(
    site: ClusterSite, nodes: list[SiteNode], ctl: Ctl
) -> None:
    stopped, other = nodes[1:]
    site.set_policy("two", "^copied$", {"ha-mode": "all", "ha-sync-mode": "automatic"}, at=other)
    fill(site, stopped, "copied")
    fill(site, stopped, "alone")
    lack = (
        "queue 'alone' in vhost '/' would be without a home: no policy has it mirrored, and its only copy is at "
        f"node {stopped.node} if node {stopped.node} is stopped"
    )
    for command in ("check_if_safe_to_stop", "drain", "stop"):
        status, _, said = ctl(stopped, command)
        assert (status, lack in said) == (69, True)
    assert is_in_service(stopped)
    assert ctl(stopped, "stop", "--force")[0] == 0
    assert not stopped.alive

    def states() -> tuple[str, str]:
        rows = {row["name"]: row["state"] for row in site.api("GET", "queues", at=other)}
        return rows["alone"], rows["copied"]

    site.wait(lambda: states() == ("down", "running"), "the other node to know of its end")
    stopped.launch()
    stopped.wait_ready()


def test_other_nodes_lead_what_a_drained_node_led_once_the_command_ends(
    site: ClusterSite, nodes: list[SiteNode], ctl: Ctl
) -> None:
    drained = next(node for node in nodes if node.alive)
    site.set_policy("two", "^handed", {"ha-mode": "all", "ha-sync-mode": "automatic"}, at=drained)
    names = {f"handed{number}" for number in range(20)}
    for name in names:
        fill(site, drained, name, count=1)
    for name in names:
        site.wait_synchronised(name, len(site.running) - 1)
    # Forced: queues of other tests have no mirrors.
    assert ctl(drained, "drain", "--force")[0] == 0
    leaders = [row["node"] for row in site.api("GET", "queues", at=drained) if row["name"] in names]
    assert len(leaders) == 20
    assert drained.node not in leaders
    assert ctl(drained, "revive")[0] == 0


def shows_down(ctl: Ctl, node: SiteNode, queue: str) -> bool:
    rows = [line.split("\t") for line in ctl(node, "list_queues", "name", "state")[1].splitlines()]
    return [queue, "down"] in rows


def test_a_node_without_a_lease_says_so(site: ClusterSite, nodes: list[SiteNode], ctl: Ctl) -> None:
    leader, other = nodes[1:]
    fill(site, leader, "waits", count=3)
    with site.channel(leader) as channel:
        channel.queue_declare("waits-too", durable=True, arguments={"x-queue-type": "stream"})
    members = json.loads(ctl(other, "cluster_status", "--formatter", "json")[1])["disk_nodes"]
    assert {leader.node, other.node} <= set(members)
    [etcd] = site.etcd.members
    etcd.kill9()
    try:
        site.wait(partial(is_suspended, leader), "a lease to end")
        status, out, _ = ctl(leader, "cluster_status", "--formatter", "json")
        shown = json.loads(out)
        assert (status, shown["running_nodes"], shown["coordination"]["state"]) == (
            0,
            [leader.node],
            "suspended",
        )
        assert set(shown["disk_nodes"]) == set(members)
        # A node that does not lead it knows where it was, too.
        for node in (leader, other):
            site.wait(partial(is_suspended, node), "a lease to end")
            # It learns of its own end first, and of the leader's in its next turns.
            site.wait(partial(shows_down, ctl, node, "waits"), "the queue to be down")
        rows = json.loads(ctl(leader, "stream_status", "waits-too", "--formatter", "json")[1])
        assert {row["state"] for row in rows} == {"down"}
        refused = ctl(leader, "delete_queue", "waits")
        assert (
            refused[0],
            "has no lease in etcd, and serves no client until it has one again" in refused[2],
        ) == (69, True)
    finally:
        etcd.restart()
    site.wait(lambda: is_in_service(leader) and is_in_service(other), "both to serve again")

    def messages_are_there() -> bool:
        # A channel each time: the first to serve again says 404 until the queue's leader has taken it back.
        with site.channel(other) as channel:
            count: int = channel.queue_declare("waits", passive=True).method.message_count
        return count == 3

    site.wait(messages_are_there, "its messages")
