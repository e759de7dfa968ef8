"""The commands of a cluster and of mirrored queues, over the control socket of one of three nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.cli.commands.nodes import cluster as commands
from leveret.cli.commands.nodes import lifecycle, mirrors, safe_to_stop
from leveret.cli.ctl import _describe, build_app, common_options_first, wanted_command
from leveret.cli.program import run
from leveret.core.broker.alarms import Watermark
from leveret.management.request import other_nodes
from leveret.model.definitions import Parameter, Policy, Put
from tests.unit.cli.commands.replication.test_followers import serving
from tests.unit.management.conftest import FakeNode
from tests.unit.management.fake_replication import follower
from tests.unit.management.trio import A, B, C, Trio, state

Ctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trio]:
    monkeypatch.setattr(other_nodes, "PART_TIMEOUT_S", 0.2)
    monkeypatch.setattr(commands, "_POLL_S", 0.01)
    trio = Trio(tmp_path)
    # The others are asked within its process.
    with serving(trio.nodes[A]):
        yield trio


@pytest.fixture
def ctl(trio: Trio, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """Runs a command against the first node: exit status, standard output, standard error."""
    return runner(trio.nodes[A], capsys)


def runner(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> Ctl:
    def command(*arguments: str) -> tuple[int, str, str]:
        words = common_options_first(["--data-dir", str(node.data_dir), *arguments])
        status = run(build_app(wanted_command(words)), "leveretctl", _describe, words)
        return (status, *capsys.readouterr())

    return command


def document(ctl: Ctl, *arguments: str, without: str = "") -> Any:
    """The command's JSON; `without` names a node that did not answer."""
    status, out, err = ctl(*arguments, "--formatter", "json")
    assert (status, err) == (0, f"leveretctl: without {without}: no answer in time\n" if without else "")
    return json.loads(out)


def failure(ctl: Ctl, *arguments: str) -> tuple[int, str]:
    """Exit status, and the one line behind the name of the program."""
    status, _, err = ctl(*arguments)
    return status, err.removeprefix("leveretctl: ").removesuffix("\n")


# -- the cluster ----------------------------------------------------------------------------------


def test_the_status_of_a_cluster_is_that_of_rabbitmqctl(trio: Trio, ctl: Ctl) -> None:
    trio.room.down.add(C)
    trio.room.definitions_lock = B
    status, out, _ = ctl("cluster_status")
    assert status == 0
    assert out.startswith(f"Cluster status of node {A} ...\nBasics\n\nCluster name: test\n")
    sections = {part.split("\n\n")[0]: part.split("\n\n")[1].splitlines() for part in two_by_two(out)}
    assert sections["Disk Nodes"] == [A, B, C]
    assert sections["Running Nodes"] == [A, B]
    assert [line.split(": ")[0] for line in sections["Versions"]] == [A, B]
    assert sections["Maintenance status"] == [
        f"Node: {name}, status: not under maintenance" for name in (A, B)
    ]
    assert sections["Alarms"] == sections["Network Partitions"] == ["(none)"]
    assert sections["Listeners"][0].startswith(f"Node: {A}, interface: ")
    assert sections["Coordination"] == [
        "Cluster id: c0ffee",
        "State of this node: member",
        "Etcd: http://etcd:2379, revision 77",
        "Lease of this node: 1.5 s left",
        f"Definitions lock: {B}",
    ]


def two_by_two(text: str) -> list[str]:
    """Headings with what stands under them."""
    pieces = text.partition("...\n")[2].rstrip("\n").split("\n\n")
    return [f"{head}\n\n{body}" for head, body in zip(pieces[::2], pieces[1::2], strict=True)]


def test_the_same_as_json_has_rabbitmqs_keys(trio: Trio, ctl: Ctl) -> None:
    trio.room.lost.add(C)
    trio.nodes[B].maintenance.is_draining = True
    shown = document(ctl, "cluster_status", without=C)
    assert set(shown) == {
        *("alarms", "cluster_name", "disk_nodes", "feature_flags", "listeners", "maintenance_status"),
        *("partitions", "ram_nodes", "running_nodes", "versions", "cpu_cores", "coordination"),
    }
    assert shown["running_nodes"] == [A, B, C]
    assert shown["maintenance_status"] == {A: "not under maintenance", B: "marked for maintenance"}
    assert set(shown["listeners"]) == {A, B}
    assert shown["partitions"] == {A: [C], B: [C]}
    lines = ctl("cluster_status")[1]
    assert f"Node {A} cannot communicate with {C}\n" in lines


def test_nodes_are_waited_for(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, _ = ctl("await_online_nodes", "3")
    assert (status, out) == (
        0,
        f"Will wait for at least 3 nodes to join the cluster of {A}. Timeout: 300 seconds.\n",
    )
    late = f"timed out while waiting. Not enough nodes joined {A}'s cluster."
    monkeypatch.setattr(commands, "_ONLINE_TIMEOUT_S", 0.05)
    assert failure(ctl, "await_online_nodes", "4") == (70, late)


def test_a_node_joins_once(trio: Trio, ctl: Ctl) -> None:
    status, out, _ = ctl("join_cluster", B)
    assert (status, out) == (
        0,
        f"Clustering node {A} with {B}\nThe node is already a member of this cluster\n",
    )
    trio.clusters[A].status_state = "forgotten"
    assert ctl("join_cluster", "--disc", B)[:2] == (0, f"Clustering node {A} with {B}\n")
    assert trio.clusters[A].calls[-1] == ("join", B)
    assert failure(ctl, "join_cluster", A) == (70, f"cannot cluster node with itself: {A}")
    assert failure(ctl, "join_cluster", "rabbit@d") == (69, "rabbit@d is no member")
    assert failure(ctl, "join_cluster", "--ram", B)[0] == 64


def test_a_node_is_forgotten_when_it_does_not_run(trio: Trio, ctl: Ctl) -> None:
    running = f"Leveret on node {B} must be stopped with 'leveretctl stop' before it can be removed"
    assert failure(ctl, "forget_cluster_node", B) == (69, running)
    unknown = "The node selected is not in the cluster."
    assert failure(ctl, "forget_cluster_node", "rabbit@d") == (69, unknown)
    trio.room.down.add(B)
    status, out, _ = ctl("forget_cluster_node", "--offline", B)
    assert (status, out) == (
        0,
        f"Removing node {B} from the cluster\nvhost\tname\tleader\tnote\n/\tq\t{A}\tdown\n",
    )
    assert trio.clusters[A].members() == [A, C]


def test_where_no_node_runs_the_settings_of_one_are_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ctl = runner(FakeNode(tmp_path), capsys)
    status, text = failure(ctl, "forget_cluster_node", "--offline", B)
    assert (status, "name this node's settings with --config" in text) == (78, True)
    assert "--config" not in failure(ctl, "forget_cluster_node", B)[1]
    assert failure(ctl, "forget_cluster_node", B)[0] == 69


def test_leaders_are_rebalanced(trio: Trio, ctl: Ctl) -> None:
    status, out, _ = ctl("rebalance", "classic", "--vhost-pattern", "^v", "--queue-pattern", "^q")
    assert status == 0
    assert out.splitlines() == [
        "Re-balancing leaders of replicated (mirrored, non-exclusive) classic queues...",
        "Node name\tNumber of quorum queues\tNumber of replicated classic queues",
        *(f"{name}\t0\t2" for name in (A, B, C)),
    ]
    assert ("rebalance", "classic", "^v", "^q") in trio.clusters[A].calls
    assert failure(ctl, "rebalance", "other")[0] == 64


def test_a_node_alone_says_what_a_cluster_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "alone").mkdir()
    alone = FakeNode(tmp_path / "alone")
    with serving(alone):
        ctl = runner(alone, capsys)
        assert "Coordination" not in ctl("cluster_status")[1]
        status, text = failure(ctl, "join_cluster", B)
        assert (status, "cluster.etcd.endpoints" in text) == (69, True)
        assert failure(ctl, "rebalance", "all")[0] == 69
        assert ctl("await_online_nodes", "1")[0] == 0
        single = (
            "Node leveret@test seems to be the only one in a single node cluster, the check does not apply"
        )
        assert single in ctl("check_if_node_is_mirror_sync_critical")[1]
        target = "Target node seems to be the only one in a single node cluster, the command does not apply"
        assert target in ctl("await_online_synchronized_mirror")[1]


# -- queues ---------------------------------------------------------------------------------------


def test_queues_are_listed_with_the_nodes_of_their_mirrors(trio: Trio, ctl: Ctl) -> None:
    both = (C, A)
    trio.declare("q", B, mirrors=both, synchronised_mirrors=(C,), recoverable_mirrors=both, is_mirrored=True)
    trio.declare("plain", A)
    columns = ("pid", "slave_pids", "synchronised_slave_pids", "mirror_pids", "synchronised_mirror_pids")
    pids = f"[<{C}./_q>, <{A}./_q>]".replace("/_", "//")
    _, out, _ = ctl("list_queues", "name", *columns, "leader", "members", "policy", "state", "--silent")
    assert out.splitlines() == [
        f"plain\t<{A}.//plain>\t\t\t\t\t\t\t\trunning",
        f"q\t<{B}.//q>\t{pids}\t[<{C}.//q>]\t{pids}\t[<{C}.//q>]\t{B}\t[{B}, {C}, {A}]\t\trunning",
    ]
    assert ctl("list_queues", "name", "--local", "--silent")[1] == "plain\n"
    trio.room.down.add(B)
    assert ctl("list_queues", "name", "state", "--offline", "--silent")[1] == "q\tdown\n"
    assert ctl("list_unresponsive_queues", "--silent")[1] == "q\n"


def test_a_queue_is_synchronised_and_waited_for(
    trio: Trio, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.declare("q", B, mirrors=(C,), is_mirrored=True, state="syncing")
    trio.declare("plain", B)
    progress = {"bytes_done": 10, "bytes_total": 20}
    trio.clusters[B].states["/", "q"] = [state(C, "syncing", progress=progress)]
    going_on = failure(ctl, "sync_queue", "q", "-t", "0")
    assert going_on == (75, "queue 'q' is still being synchronised; the synchronisation continues")

    async def done(vhost: str, name: str) -> None:
        placed = trio.room.placements["/", "q"]._replace(**after)
        trio.room.placements["/", "q"] = placed

    monkeypatch.setattr(trio.clusters[B], "sync_queue", done)
    monkeypatch.setattr(mirrors, "_RECORDED_S", 0.05)
    after: dict[str, Any] = {}
    for state_after, why in (
        (
            "running",
            f"is not synchronised at {C}: the synchronisation was cancelled, or the node is not connected",
        ),
        ("down", "is down: it cannot be synchronised"),
    ):
        after["state"] = state_after
        assert failure(ctl, "sync_queue", "q") == (69, f"queue 'q' in vhost '/' {why}")
    after.update(state="running", synchronised_mirrors=(C,))
    assert ctl("sync_queue", "q") == (0, "Synchronising queue 'q' in vhost '/' ...\n", "")
    monkeypatch.undo()
    assert failure(ctl, "sync_queue", "plain") == (69, "not_mirrored")
    assert failure(ctl, "sync_queue", "nope") == (69, "not_found")


def test_a_synchronisation_is_stopped(trio: Trio, ctl: Ctl) -> None:
    trio.declare("q", B, mirrors=(C,), is_mirrored=True, state="syncing")
    trio.declare("plain", B)
    stopping = "Stopping synchronising queue '{}' in vhost '/' ...\n"
    assert ctl("cancel_sync_queue", "q") == (0, stopping.format("q"), "")
    assert ("cancel_sync", "/", "q") in trio.clusters[B].calls
    assert ctl("cancel_sync_queue", "plain") == (0, stopping.format("plain") + "not_syncing\n", "")
    assert failure(ctl, "cancel_sync_queue", "nope") == (69, "not_found")


def test_a_node_that_may_not_be_stopped_is_told(
    trio: Trio, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.declare("q1", A, mirrors=(B,), synchronised_mirrors=(B,), is_mirrored=True)
    safe = f"Node {A} reported no classic mirrored queues without online synchronised mirrors\n"
    assert ctl("check_if_node_is_mirror_sync_critical")[:2] == (
        0,
        f"Checking if node {A} is critical for data safety of any classic mirrored queues ...\n{safe}",
    )
    waiting = (
        "Will wait for a synchronised mirror be online for all classic mirrored queues for 120 seconds...\n"
    )
    assert ctl("await_online_synchronized_mirror") == (0, waiting, "")
    trio.declare("q2", A, mirrors=(B,), is_mirrored=True)
    trio.declare("q3", A, is_mirrored=True)
    lost = (
        "queue '{}' in vhost '/' would lose its only synchronised replica (master) if node "
        + A
        + " is stopped"
    )
    assert failure(ctl, "check_if_node_is_mirror_sync_critical") == (
        69,
        f"{lost.format('q2')}; {lost.format('q3')}",
    )
    late = "time is up, no synchronised mirror came online for at least some classic mirrored queues"
    monkeypatch.setattr(safe_to_stop, "_TIMEOUT_S", 0.05)
    assert failure(ctl, "await_online_synchronized_mirror") == (69, late)
    assert ctl("check_if_node_is_quorum_critical")[0] == 0


def test_a_node_without_a_lease_does_not_serve_and_may_be_stopped(trio: Trio, ctl: Ctl) -> None:
    trio.declare("q", A)
    assert ctl("check_running")[0] == 0
    trio.nodes[A].replication.role = "suspended"
    suspended = f"node {A} has no lease in etcd, and serves no client until it has one"
    assert failure(ctl, "check_running") == (69, suspended)
    assert failure(ctl, "check_alarms")[0] == 69
    assert ctl("check_if_safe_to_stop")[0] == 0


def test_what_would_lack_something_is_named_before_a_node_is_stopped_or_drained(
    trio: Trio, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(lifecycle, "_end", lambda ctl, pid, *, waits: ended.append(pid))
    monkeypatch.setattr(lifecycle, "holder", lambda data_dir: 4711)
    trio.declare("safe", A, mirrors=(B,), synchronised_mirrors=(B,), is_mirrored=True)
    safe = f"Node {A} is safe to stop: every queue, stream and follower keeps a copy, a majority and a home\n"
    assert ctl("check_if_safe_to_stop")[:2] == (0, f"Checking if node {A} is safe to stop ...\n{safe}")
    assert ctl("stop")[0] == 0
    trio.declare("q", A, mirrors=(B,), is_mirrored=True)
    trio.nodes[A].replication.followers = [follower("f", "1", in_sync=False, lag_records=7)]
    lines = [
        f"queue 'q' in vhost '/' would be without a synchronised copy if node {A} is stopped",
        "follower 'f' would be without 7 changes that only this node has, and no other follower is in sync "
        f"if node {A} is stopped",
    ]
    assert failure(ctl, "check_if_safe_to_stop") == (69, "; ".join(lines))
    refused = "; ".join([*lines, "nothing was done; wait until the copies are there, or go on with --force"])
    for command in ("stop", "shutdown", "drain"):
        assert failure(ctl, command) == (69, refused)
    assert ended == [4711]
    assert trio.nodes[A].maintenance.is_draining is False
    for command in ("stop", "shutdown", "drain"):
        assert ctl(command, "--force")[0] == 0
    assert ended == [4711, 4711, 4711]
    assert trio.nodes[A].maintenance.is_draining is True


def test_a_node_that_serves_nobody_is_stopped_without_a_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(lifecycle, "_end", lambda ctl, pid, *, waits: ended.append(pid))
    monkeypatch.setattr(lifecycle, "holder", lambda data_dir: 4711)
    assert runner(FakeNode(tmp_path), capsys)("stop")[0] == 0
    assert ended == [4711]


# -- policies -------------------------------------------------------------------------------------


@pytest.fixture
def policies(trio: Trio) -> None:
    ha = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    for name, definition in (("ha", ha), ("both", {**ha, "max-length": 5}), ("short", {"max-length": 1})):
        trio.everywhere(Put(Policy(name=name, vhost="/", pattern="^q", definition=definition, priority=1)))
    value = {
        "pattern": "^",
        "definition": {"ha-mode": "exactly", "ha-params": 2},
        "priority": 0,
        "apply-to": "all",
    }
    trio.everywhere(Put(Parameter(component="operator_policy", name="op", vhost="/", value=value)))


@pytest.mark.usefixtures("policies")
def test_policies_that_have_queues_mirrored_are_listed_and_told(ctl: Ctl) -> None:
    _, out, _ = ctl("list_policies_with_classic_queue_mirroring")
    lines = out.splitlines()
    assert lines[:2] == [
        "Listing policies with classic queue mirroring ...",
        "vhost\tname\tpattern\tapply-to\tdefinition\tpriority",
    ]
    assert [line.split("\t")[1] for line in lines[2:]] == ["both", "ha"]
    rows = document(ctl, "list_operator_policies_with_classic_queue_mirroring")
    assert [row["name"] for row in rows] == ["op"]
    text = "Policy both enables classic queue mirroring; Policy ha enables classic queue mirroring; "
    operators = "Operator policy op enables classic queue mirroring"
    command = "check_if_cluster_has_classic_queue_mirroring_policy"
    assert failure(ctl, command) == (69, text + operators)


@pytest.mark.usefixtures("policies")
def test_mirroring_is_taken_out_of_all_policies(trio: Trio, ctl: Ctl) -> None:
    will = "Will remove keys that enable classic queue mirroring from all regular and operator policies\n"
    assert ctl("remove_classic_queue_mirroring_from_policies") == (0, will, "")
    existing = trio.nodes[A].broker.definitions.by_kind["policies"].values()
    assert {each.name: (each.definition, each.priority) for each in existing if isinstance(each, Policy)} == {
        "both": ({"max-length": 5}, 1),
        "short": ({"max-length": 1}, 1),
    }
    _, out, _ = ctl("check_if_cluster_has_classic_queue_mirroring_policy")
    assert out.endswith("\nCluster reported no policies that enable classic queue mirroring\n")
    assert ctl("list_operator_policies_with_classic_queue_mirroring", "--silent")[:2] == (0, "")


def test_alarms_of_the_cluster_and_of_the_node_are_told_apart(trio: Trio, ctl: Ctl) -> None:
    trio.nodes[B].alarms.set_memory(Watermark(bytes_=1))
    trio.nodes[B].alarms.probe()
    alarm = f"Memory alarm on node {B}"
    assert document(ctl, "alarms")["alarms"] == [alarm]
    assert failure(ctl, "check_alarms") == (69, f"Node {A} reported alarms: {alarm}")
    assert ctl("check_local_alarms")[0] == 0
    assert [each["node"] for each in document(ctl, "listeners")["listeners"]].count(A) > 0
    assert {each["node"] for each in document(ctl, "listeners")["listeners"]} == {A}
