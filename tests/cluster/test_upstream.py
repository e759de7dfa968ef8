"""A cluster as the upstream of a standby: leaders move and die, nodes join and are forgotten, and at last all are lost.

The story is played once, with one Spark; each test looks at one side of how it ended. Messages and the choices of
consumers follow from a seed; LEVERET_SEED sets another one.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from leveret.testing.applications.applications import ReceivedMessage, TxConsumer
from leveret.testing.applications.audit import FOREVER, Audit
from leveret.testing.applications.mixed_messages import declare
from leveret.testing.sites.cluster_site import SiteNode
from leveret.testing.sites.cluster_standby import ClusterStandby
from tests.e2e.site import Site, background, drain_all

pytestmark = [
    pytest.mark.story,
    # With the other stories in which nodes start Spark, each its own.
    pytest.mark.xdist_group("stories"),
    pytest.mark.timeout(900),
]

VHOST: Final = "orders"
WORK: Final = ("one", "two", "three")
OFF: Final = "off"
AGAIN: Final = "again"
COUNT: Final = 400
HELD: Final = 40


@dataclass
class Aftermath:
    """How the story went, and how it ended.

    Attributes:
        rows: the downstream's row of the vhost, by chapter.
        leaders: by chapter and queue.
        gap_s: from the loss of a node to the moment at which the standby had everything that was confirmed since.
        again: what the audit says of a queue whose policy came back.
        found: what the queues had after the promotion.
    """

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    leaders: dict[str, dict[str, str]] = field(default_factory=dict)
    gap_s: float = 0.0
    status: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    forgotten: str = ""
    books: Audit | None = None
    again: Audit | None = None
    found: dict[str, list[ReceivedMessage]] = field(default_factory=dict)


class Story:
    """The cluster, its standby, and the applications."""

    def __init__(self, pair: ClusterStandby, site: Site) -> None:
        self.pair = pair
        self.site = site
        self.told = Aftermath()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Publish to all queues, and consume, beside the block."""
        consumer = self.site.consumer(WORK)
        publisher = self.site.publisher(WORK, COUNT)
        with background(publisher, consumer):
            yield
            wanted = self.site.confirmed()
            self.pair.site.wait(
                lambda: publisher.is_done or self.site.confirmed() > wanted + COUNT, "the publisher"
            )
            consumer.stop()

    def tell(self, chapter: str) -> None:
        """Wait until the standby has everything, and note how things are."""
        self.told.rows[chapter] = self.pair.row_transferred()
        self.told.leaders[chapter] = self.leaders()

    def leaders(self) -> dict[str, str]:
        placed = self.pair.site.queues(self.pair.site.running[0], VHOST)
        return {queue: place.leader for queue, place in placed.items() if place.state == "running"}

    def wait_led_without(self, gone: SiteNode) -> None:
        def led() -> bool:
            leaders = self.leaders()
            return {*WORK, OFF, AGAIN} <= set(leaders) and gone.node not in leaders.values()

        self.pair.site.wait(led, f"no queue to be led by {gone.node}")

    def hand_over(self, node: SiteNode) -> None:
        """Have another node lead what this one leads."""
        node.ctl("drain")
        self.wait_led_without(node)
        node.ctl("revive")


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    folder = tmp_path_factory.mktemp("upstream")
    seed = int(os.environ.get("LEVERET_SEED", random.randrange(1 << 31)))
    print(f"LEVERET_SEED={seed}")
    with ClusterStandby(VHOST, folder) as pair:
        pair.start()
        pair.replicate("osr", "^(one|two|three)$")
        pair.replicate("off", "^off$")
        pair.replicate("again", "^again$")
        first, second, third = pair.site.members
        for node, queue in zip((first, second, third, first, second), (*WORK, OFF, AGAIN), strict=True):
            with pair.site.channel(node, VHOST) as channel:
                declare(channel, [queue])
        pair.follow()
        # A plain ack of a previous leader's delivery is ignored, and nobody hears of that.
        story = Story(pair, Site(third, VHOST, folder, seed, consumers=TxConsumer))
        story.site.publish([OFF], HELD)
        story.site.publish([AGAIN], HELD)
        all_nodes_lead(story)
        leaders_move(story, first)
        policies_come_and_go(story, second)
        a_node_dies(story, second)
        a_node_joins_and_one_is_forgotten(story, second)
        the_site_is_lost(story)
        yield story.told


def all_nodes_lead(story: Story) -> None:
    with story.work():
        pass
    story.tell("all lead")


def leaders_move(story: Story, node: SiteNode) -> None:
    with story.work():
        story.hand_over(node)
    story.tell("moved")


def policies_come_and_go(story: Story, node: SiteNode) -> None:
    """The policy of a queue goes, another node leads it, and the policy comes back."""
    story.pair.mirror_only("again", "^again$")
    story.tell("without policy")
    story.hand_over(node)
    story.pair.replicate("again", "^again$")
    story.pair.mirror_only("off", "^off$")
    story.tell("with policy")


def a_node_dies(story: Story, node: SiteNode) -> None:
    with story.work():
        node.kill9()
        lost_s = time.monotonic()
        story.wait_led_without(node)
        story.pair.wait_transferred()
        story.told.gap_s = time.monotonic() - lost_s
    story.tell("one dead")


def a_node_joins_and_one_is_forgotten(story: Story, dead: SiteNode) -> None:
    site = story.pair.site
    joined = site.add()
    site.start(joined)
    site.forget(dead, at=joined)
    story.told.forgotten = dead.node
    site.wait(
        lambda: all(joined.node in _synchronised(story, queue) for queue in WORK), f"mirrors at {joined.node}"
    )
    joined.ctl("rebalance", "all")
    site.wait(lambda: joined.node in story.leaders().values(), "the new node to lead")
    with story.work():
        pass
    story.tell("joined")
    story.told.status = story.pair.status()
    story.told.text = story.pair.downstream.ctl("standby_replication_status").stdout


def _synchronised(story: Story, queue: str) -> tuple[str, ...]:
    placed = story.pair.site.queues(story.pair.site.running[0], VHOST)
    return placed[queue].synchronised if queue in placed else ()


def the_site_is_lost(story: Story) -> None:
    pair, site = story.pair, story.site
    consumer = site.consumer(WORK)
    with background(site.publisher(WORK, 100_000), consumer):
        site.wait_confirmed(site.confirmed() + COUNT)
        for node in pair.site.members:
            node.kill9()
    done = pair.promote()
    assert done.returncode == 0, done.stdout + done.stderr
    print(json.loads(done.stdout))
    covered = pair.covered(WORK)
    found = drain_all(pair.downstream, VHOST, [*WORK, OFF, AGAIN], keep=False)
    story.told.found = found
    story.told.books = site.audit({queue: found[queue] for queue in WORK}, covered)
    story.told.again = site.audit({AGAIN: found[AGAIN]}, {AGAIN: FOREVER})


def test_each_node_serves_what_it_leads(aftermath: Aftermath) -> None:
    row = aftermath.rows["all lead"]
    assert set(aftermath.leaders["all lead"].values()) == {each["node"] for each in row["nodes"]}
    assert all(each["transferred"] and each["state"] == "connected" for each in row["nodes"])


def test_a_leader_that_moved_goes_on_in_the_log_of_another_node(aftermath: Aftermath) -> None:
    before, after = aftermath.leaders["all lead"], aftermath.leaders["moved"]
    assert before["one"] != after["one"]


def test_the_loss_of_a_node_is_no_loss_of_the_standby(aftermath: Aftermath) -> None:
    [dead] = [each for each in aftermath.rows["one dead"]["nodes"] if each["node"] == aftermath.forgotten]
    assert dead["state"] == "absent"
    assert aftermath.rows["one dead"]["lag_records"] == 0


def test_a_node_that_joined_is_found_and_one_that_was_forgotten_is_not_missed(aftermath: Aftermath) -> None:
    nodes = {each["node"]: each for each in aftermath.rows["joined"]["nodes"]}
    [joined] = nodes.keys() - {each["node"] for each in aftermath.rows["one dead"]["nodes"]}
    assert joined in aftermath.leaders["joined"].values()
    assert nodes[joined]["transferred"] > 0
    assert nodes[aftermath.forgotten]["state"] == "absent"
    assert f"Of {VHOST} at {joined}" in aftermath.text


def test_all_that_was_transferred_comes_back_once_and_nothing_else(aftermath: Aftermath) -> None:
    assert aftermath.books is not None
    assert aftermath.books.balances, aftermath.books.total
    assert aftermath.books.total.confirmed >= 5 * COUNT


def test_a_queue_whose_policy_returned_under_another_leader_comes_back_whole(aftermath: Aftermath) -> None:
    assert aftermath.again is not None
    assert aftermath.again.balances, aftermath.again.total
    assert len(aftermath.found[AGAIN]) == HELD


def test_a_queue_whose_policy_went_does_not_come_back(aftermath: Aftermath) -> None:
    assert aftermath.found[OFF] == []
