"""What a node owes those that follow it: publishers wait while too few do, and no longer than it leads."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.config import load
from leveret.config.kinds import Address
from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.model.errors import PreconditionFailed, StorageError
from leveret.runtime.logs.log_store import log_name
from leveret.runtime.node.node import Node
from leveret.runtime.replication.identity import IdentityFile
from leveret.runtime.roles.follower_server import FollowerServer, uri_of
from leveret.session.link_handshake import ProvenFollower
from leveret.storage.open_segments import OutOfDescriptors
from leveret.storage.tree import Tree
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.network.waiting import until
from leveret.wire.chunk import HEADER_BYTES
from tests.unit.core.broker.test_broker import no_read
from tests.unit.runtime.replication.link_sites import link_end, unheard
from tests.unit.storage.logs import append_often, make
from tests.unit.storage.places import flip

SETTINGS = {"replication.bind": LOOPBACK, "replication.port": "0", "replication.min_in_sync": "1"}


class Site:
    """A node that serves nobody, and its door; `met` are those who took it over."""

    def __init__(self, directory: Path, *, leads: bool, **settings: str) -> None:
        config = load(None, SETTINGS | {f"replication.{key}": value for key, value in settings.items()})
        self.node = Node(config, directory, Tree(directory, epoch=1))
        self.met: list[ProvenFollower] = []
        self.follower_server = FollowerServer(
            lambda: self.node,
            config,
            leads=leads,
            own=link_end(IdentityFile(directory)),
            elected=None,
            recorded=frozenset(),
            met=self._meets,
            answer=unheard,
            accept_client=lambda by, peer: pytest.fail("a client came"),
        )

    def _meets(self, other: ProvenFollower) -> bool:
        self.met.append(other)
        return True

    async def close(self) -> None:
        await self.follower_server.close()
        self.node.close()
        self.node.tree.close()


@pytest.mark.parametrize("below", ["block", "nack"])
async def test_publishers_wait_while_too_few_followers_are_in_sync_until_the_door_is_closed(
    tmp_path: Path, below: str
) -> None:
    site = Site(tmp_path, leads=True, below_min_in_sync=below)
    node = site.node
    await site.follower_server.open(LOOPBACK)
    await until(lambda: node.broker.refuses_durable or node.alarms.active, "short of followers")
    assert (node.broker.refuses_durable, bool(node.alarms.active)) == (below == "nack", below == "block")
    await site.follower_server.close()
    # Links that end only now are those of a leader that is none any more.
    node.broker.refuses_durable = False
    node.alarms.set_replicas_short(False)
    site.follower_server.listener._leading.noticed()
    assert (node.broker.refuses_durable, bool(node.alarms.active)) == (False, False)
    await site.close()


async def test_a_follower_that_is_followed_promises_and_hands_over_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, leads=False)
    other = ProvenFollower("follow", "f" * 24, "f", 1, 1, False, "", "")
    site.follower_server.listener._leading.noticed()
    assert not site.node.alarms.active
    with pytest.raises(PreconditionFailed, match="does not lead"):
        site.follower_server.listener._leading.hand_over(other, 2)
    assert site.met == []
    assert site.follower_server.feed.committed() == site.follower_server.feed.position
    await site.close()


async def test_who_takes_over_is_met_as_the_leader_of_the_next_epoch(tmp_path: Path) -> None:
    site = Site(tmp_path, leads=True)
    other = ProvenFollower("follow", "f" * 24, "f", 1, 1, False, "", "")
    site.follower_server.listener._leading.hand_over(other, 2)
    assert [(each.epoch, each.leader_id) for each in site.met] == [(2, other.node_id)]
    await site.close()


async def test_a_log_that_cannot_be_read_is_left_out_until_it_is_copied_again_or_deleted(
    tmp_path: Path,
) -> None:
    """Also while the new copy is closed for a moment, as its leader changes (2026-12-01)."""
    copied, deleted = "queues/0000000000000001", "queues/0000000000000002"
    for name in (copied, deleted):
        damaged = make(tmp_path / name).open()
        append_often(damaged, 2, size=10)
        damaged.close()
        flip(tmp_path / name, segment=0, position=HEADER_BYTES + 5)
    site = Site(tmp_path, leads=True)
    left_out, tree = site.follower_server.listener._leading.damaged, site.node.tree
    await site.node.open_all_logs()
    found = [left_out()]
    tree.put_away(copied, tmp_path / "divergent")
    found.append(left_out())
    log = tree.log(tmp_path / copied).open()
    found.append(left_out())
    log.close()
    del tree.logs[copied]
    found.append(left_out())
    tree.log(tmp_path / deleted).delete()
    found.append(left_out())
    assert found == [{copied, deleted}, {copied, deleted}, {deleted}, {deleted}, set()]
    await site.close()


@pytest.mark.parametrize(
    ("settings", "address", "uri"),
    [
        ({}, Address("10.0.0.1", 5679), "tcp://10.0.0.1:5679"),
        ({}, Address("0.0.0.0", 5679), ""),
        ({}, None, ""),
        ({"replication.advertised_uri": "tcp://broker:5679"}, None, "tcp://broker:5679"),
    ],
)
def test_where_a_door_is_found(settings: dict[str, str], address: Address | None, uri: str) -> None:
    assert uri_of(load(None, settings).followers, address) == uri


async def test_a_queue_is_not_taken_down_because_no_descriptor_is_left_to_read_it_for_a_follower(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, leads=True)
    queue = Queue(d.Queue(vhost="/", name="q", epoch=8), no_read)
    site.node.broker.queues[queue.key] = queue
    with pytest.raises(OutOfDescriptors):
        site.follower_server._log_unreadable(log_name(queue), OutOfDescriptors("too many open files"))
    damage = [queue.damage]
    site.follower_server._log_unreadable(log_name(queue), StorageError("unreadable"))
    assert [*damage, queue.damage] == [None, "unreadable"]
    await site.close()
