"""A cluster as the upstream of a cluster: every command of the guides at changing nodes of the downstream, exact books.

The story is played once, and told by several tests. Which messages are acked follows from a seed; LEVERET_SEED sets
another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_site import SiteNode
from leveret.testing.sites.standby_cluster import PROMOTE_TIMEOUT_S, StandbyCluster

# Four to eight starts of Spark at once: six minutes on two quiet cores, and more than CI's patience on busy ones.
pytestmark = [pytest.mark.spark, pytest.mark.torture, pytest.mark.timeout(1500)]

VHOSTS: Final = ("orders", "shop")
QUEUES: Final = ("q1", "q2")
PER_QUEUE: Final = 40
PROMOTE: Final = "promote_standby_replication_downstream"


@dataclass
class Aftermath:
    """What the commands said, by chapter, and the books that they are compared with."""

    said: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, dict[tuple[str, str], int]] = field(default_factory=dict)
    books: dict[str, dict[tuple[str, str], list[int]]] = field(default_factory=dict)
    exported: Path = Path()


class Story:
    """Both sites, and what is told of them."""

    def __init__(self, sites: StandbyCluster, folder: Path) -> None:
        self.sites = sites
        self.folder = folder
        self.told = Aftermath()

    def work(self) -> None:
        """Publish to all queues at all nodes of the upstream, and ack a part."""
        for vhost in self.sites.vhosts:
            for queue in QUEUES:
                self.sites.publish(vhost, queue, PER_QUEUE)

    def note_books(self, chapter: str) -> None:
        """Note how many messages are unsettled by now."""
        self.told.books[chapter] = {place: [*numbers] for place, numbers in self.sites.books.expected.items()}
        self.told.expected[chapter] = {
            place: len(numbers) for place, numbers in self.told.books[chapter].items()
        }

    def run(
        self, chapter: str, node: SiteNode, *command: str, input_text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command at a node, and note what it prints."""
        done = node.ctl(
            "--formatter", "json", *command, check=False, input_text=input_text, timeout_s=PROMOTE_TIMEOUT_S
        )
        print(f"{chapter}: {node.node} {' '.join(command)} -> {done.returncode}: {done.stderr[-600:]}")
        is_json = done.returncode == 0 and done.stdout.strip()
        self.told.said[chapter] = json.loads(done.stdout) if is_json else done.stdout + done.stderr
        return done

    def modes(self) -> set[str]:
        """The modes, as the nodes say."""
        return {self.sites.status(at=node)["operating_mode"] for node in self.sites.cluster.members}

    def set_mode(self, mode: str, node: SiteNode) -> None:
        """Set the mode at one node; note the modes of all."""
        node.ctl("set_standby_replication_mode", mode)
        self.sites.wait(lambda: self.modes() == {mode}, f"all nodes to be {mode}")


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    if reason := cluster_site.available():
        pytest.skip(reason)
    seed = int(os.environ.get("LEVERET_SEED", "7"))
    print(f"seed {seed}")
    folder = tmp_path_factory.mktemp("sites")
    with StandbyCluster(folder, VHOSTS, nodes=2, upstream_nodes=2, seed=seed) as sites:
        story = Story(sites, folder)
        begins(story)
        is_looked_at(story)
        is_recovered_elsewhere(story)
        changes_its_mind(story)
        deletes(story)
        is_promoted(story)
        yield story.told


def begins(story: Story) -> None:
    """Both sites work; there is a moment between two halves of the load."""
    story.work()
    story.sites.follow(at=story.sites.cluster.members[1])
    story.sites.wait_spread(most=1)
    story.sites.wait_transferred()
    story.note_books("first half")
    time.sleep(0.1)  # The moment has a time of its own.
    story.told.said["moment"] = datetime.now(UTC).isoformat()
    time.sleep(0.1)
    story.work()
    story.sites.wait_transferred()
    story.note_books("both halves")


def is_looked_at(story: Story) -> None:
    first, second = story.sites.cluster.members
    story.told.exported = story.folder / "exported"
    for chapter, node, command in (
        ("status", first, ("standby_replication_status",)),
        ("metrics", second, ("inspect_standby_downstream_metrics",)),
        ("local data", first, ("inspect_local_data_available_for_standby_replication_recovery",)),
        ("available", second, ("list_vhosts_available_for_standby_replication_recovery",)),
        ("disk", first, ("display_disk_space_used_by_standby_replication_data",)),
        ("dry run", second, (PROMOTE, "--dry-run")),
        ("rehearsal", first, ("rehearse_promotion",)),
        ("export of all", first, ("export_standby_data", str(story.folder / "all"))),
        ("export", second, ("export_standby_data", "--virtual-host", "orders", str(story.told.exported))),
    ):
        story.run(chapter, node, *command)


def is_recovered_elsewhere(story: Story) -> None:
    """Both vhosts go into another broker, as they stood at the moment."""
    target = LeveretProcess(parent_dir=story.folder)
    try:
        target.start()
        for vhost in VHOSTS:
            target.ctl("add_vhost", vhost)
            target.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        uri = f"amqp://guest@{LOOPBACK}:{target.amqp_port}"
        options = ("--to", uri, "--as-of", story.told.said["moment"])
        story.run("elsewhere", story.sites.cluster.members[1], PROMOTE, *options, input_text="guest\n")
        rows: dict[tuple[str, str], int] = {}
        for vhost in VHOSTS:
            listed = target.ctl("--formatter", "json", "list_queues", "-p", vhost, "name", "messages").stdout
            rows |= {(vhost, row["name"]): row["messages"] for row in json.loads(listed)}
        story.told.said["queues elsewhere"] = rows
        for place, numbers in story.told.books["first half"].items():
            found = story.sites.drained(target, *place)
            story.sites.books.check(place, found, numbers, has_own_exchange=False)
    finally:
        target.close()


def changes_its_mind(story: Story) -> None:
    first, second = story.sites.cluster.members
    first.ctl("disconnect_standby_replication_downstream")
    story.told.said["disconnected"] = [story.sites.status(at=node)["state"] for node in (first, second)]
    second.ctl("connect_standby_replication_downstream")
    story.set_mode("upstream", first)
    story.set_mode("downstream", first)
    story.sites.wait_following()
    story.sites.wait_transferred()
    story.told.said["modes"] = sorted(story.modes())


def deletes(story: Story) -> None:
    """All data are deleted and come again; then a vhost is deleted at the upstream, and its data are orphans."""
    first, second = story.sites.cluster.members
    second.ctl("disconnect_standby_replication_downstream")
    story.run("deletion", first, "delete_all_data_on_standby_replication_cluster")
    story.run("nothing", second, "list_vhosts_available_for_standby_replication_recovery")
    first.ctl("connect_standby_replication_downstream")
    story.sites.wait_spread(most=1)
    story.sites.wait_transferred()
    story.run("no orphans", second, "delete_orphaned_data_on_standby_replication_downstream_cluster")
    story.sites.upstream.ctl("delete_vhost", "shop")
    story.sites.vhosts.remove("shop")
    for place in [place for place in story.sites.books.expected if place[0] == "shop"]:
        del story.sites.books.expected[place]
    story.sites.wait(lambda: "shop" not in story.sites.places(), "the vhost to go")
    story.run("orphans", second, "delete_orphaned_data_on_standby_replication_downstream_cluster")
    story.run("disk at last", first, "display_disk_space_used_by_standby_replication_data")
    story.sites.wait_following()
    story.work()
    story.sites.wait_transferred()


def is_promoted(story: Story) -> None:
    """In two parts, at two nodes."""
    first, second = story.sites.cluster.members
    story.note_books("at last")
    story.sites.lose_upstream()
    story.run("one queue", first, PROMOTE, "--queues", "q1")
    story.told.said["left out"] = story.sites.status(at=second)["left_out"]
    story.run("the rest", second, PROMOTE)
    story.run("summary", first, "display_standby_promotion_summary")
    story.sites.check_recovered()
    story.told.said["mode at last"] = story.modes()


def counted(rows: list[dict[str, Any]], vhost: str = "virtual_host") -> dict[tuple[str, str], int]:
    """Messages by vhost and queue."""
    return {(row[vhost], row["queue"]): row["message_count"] for row in rows}


def test_any_node_says_what_all_nodes_have(aftermath: Aftermath) -> None:
    said, published = aftermath.said, 2 * PER_QUEUE
    places = {(vhost, queue) for vhost in VHOSTS for queue in QUEUES}
    status = {row["virtual_host"]: row for row in said["status"]["vhosts"]}
    assert {vhost: len(row["nodes"]) for vhost, row in status.items()} == dict.fromkeys(VHOSTS, 2)
    assert {row["lag_records"] for row in status.values()} == {0}
    assert {(row["vhost"], row["queue"]): row["messages"] for row in said["metrics"]} == dict.fromkeys(
        places, published
    )
    assert {(row["vhost"], row["queue"]): row["messages"] for row in said["local data"]} == dict.fromkeys(
        places, published
    )
    assert sorted(row["virtual_host"] for row in said["available"]) == sorted(VHOSTS)
    disk = {(row["vhost"], row["node"]) for row in said["disk"]}
    assert {(vhost, row["node"]) for vhost, row in status.items()} <= disk


def test_a_dry_run_and_a_rehearsal_have_all_that_is_unsettled(aftermath: Aftermath) -> None:
    wanted = aftermath.expected["both halves"]
    assert counted(aftermath.said["dry run"]["queues"]) == wanted
    assert counted(aftermath.said["rehearsal"]["queues"]) == wanted
    assert aftermath.said["rehearsal"]["compared"] == sum(wanted.values())


def test_an_export_is_of_one_vhost_and_from_any_node(aftermath: Aftermath) -> None:
    assert "name one virtual host with --virtual-host" in aftermath.said["export of all"]
    rows = {row["queue"]: (row["messages"], row["pending"]) for row in aftermath.said["export"]}
    wanted = aftermath.expected["both halves"]
    assert rows == {queue: (2 * PER_QUEUE, wanted["orders", queue]) for queue in QUEUES}
    assert list(aftermath.exported.rglob("*.parquet"))


def test_another_broker_gets_the_queues_as_they_stood_at_a_moment(aftermath: Aftermath) -> None:
    assert aftermath.said["queues elsewhere"] == aftermath.expected["first half"]


def test_link_and_mode_are_the_sites(aftermath: Aftermath) -> None:
    assert aftermath.said["disconnected"] == ["disconnected"] * 2
    assert aftermath.said["modes"] == ["downstream"]


def test_deleted_data_are_deleted_at_all_nodes_and_transferred_anew(aftermath: Aftermath) -> None:
    assert not aftermath.said["nothing"]
    assert not aftermath.said["no orphans"]
    [row] = aftermath.said["orphans"]
    assert row["vhost"] == "shop"
    assert [each["vhost"] for each in aftermath.said["disk at last"]] == ["orders"]


def test_a_promotion_in_two_parts_brings_all_back_once(aftermath: Aftermath) -> None:
    """The books themselves are compared in the story, queue by queue, at changing nodes."""
    said, wanted = aftermath.said, aftermath.expected["at last"]
    [left] = said["left out"]["vhosts"]
    assert left["messages"] == wanted["orders", "q2"]
    assert sum(row["message_count"] for row in said["one queue"]) == wanted["orders", "q1"]
    assert sum(row["message_count"] for row in said["the rest"]) == wanted["orders", "q2"]
    assert sum(row["message_count"] for row in said["summary"]) == sum(wanted.values())
    assert said["mode at last"] == {"upstream"}
