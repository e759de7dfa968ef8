"""Of leaders that meet one goes on, whoever was told of whom, and all of them hear of who came after them."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from leveret.config.uris import NodeUri, parse_node_uri
from leveret.model.errors import StorageError
from leveret.runtime.replication.identity import IdentityFile, LinkEnd
from leveret.runtime.roles import fencer, leaderships
from leveret.runtime.roles.fencer import Fencer
from leveret.runtime.roles.leaderships import Leaderships
from leveret.session.link_handshake import FORMER_LEADERS_MAX, ProvenFollower, ProvenLeader
from leveret.storage.state_file import StateFile
from leveret.testing.network.waiting import until
from tests.unit.runtime.replication.link_sites import SECRET, LeaderSite


class Node:
    """What is known of who leads, at one node."""

    def __init__(self, directory: Path, node_id: str) -> None:
        directory.mkdir(exist_ok=True)
        self.file = IdentityFile(directory)
        self.identity = self.file.identity
        self.identity.node_id = node_id
        self.replaced: list[ProvenLeader] = []
        self.leaderships = Leaderships(self.file, self._fencer, self.replaced.append)

    def _fencer(self, uri: NodeUri) -> Fencer:
        name = self.identity.node_id
        own_uri = "tcp://127.0.0.1:1"
        return Fencer(
            uri, LinkEnd(SECRET, self.file, name, lambda: own_uri, lambda: pytest.fail("no TLS here"))
        )

    def as_peer(self, kind: str) -> ProvenFollower:
        identity = self.identity
        return ProvenFollower(
            kind,  # type: ignore[arg-type]
            identity.node_id,
            identity.node_id,
            identity.epoch,
            identity.followed_epoch,
            identity.led,
            "",
            identity.leader_id,
        )

    def leads(self) -> bool:
        return not self.identity.is_fenced


@pytest.fixture
def one(tmp_path: Path) -> Node:
    return Node(tmp_path / "one", "a")


@pytest.fixture
def other(tmp_path: Path) -> Node:
    return Node(tmp_path / "other", "b")


def test_of_two_that_lead_in_one_epoch_one_goes_on(one: Node, other: Node, tmp_path: Path) -> None:
    """Each was promoted without having heard of the other."""
    for node in (one, other):
        node.leaderships.take_lead(raises_epoch=True, epoch=0)
    assert one.identity.epoch == other.identity.epoch
    assert not other.leaderships.met(one.as_peer("fence"))
    assert one.leaderships.met(other.as_peer("fence"))
    assert (one.leads(), other.leads()) == (False, True)
    assert IdentityFile(tmp_path / "one").identity.is_fenced


def test_who_comes_to_follow_in_the_same_epoch_replaces_nobody(one: Node, other: Node) -> None:
    for node in (one, other):
        node.leaderships.take_lead(raises_epoch=True, epoch=0)
    assert not one.leaderships.met(other.as_peer("follow"))
    assert one.leads()


def test_the_next_epoch_is_later_than_any_that_was_heard_of(one: Node, other: Node) -> None:
    for node in (one, other):
        node.leaderships.take_lead(raises_epoch=True, epoch=0)
    assert one.leaderships.met(other.as_peer("fence"))
    one.leaderships.take_lead(raises_epoch=True, epoch=0)
    assert one.leads()
    assert other.leaderships.met(one.as_peer("fence"))


async def test_a_leader_that_tells_a_former_one_hears_of_a_later_one(
    tmp_path: Path, one: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former leader was promoted again, by force, and does not know where this one is."""
    monkeypatch.setattr(fencer, "EVERY_S", 0.01)

    former = LeaderSite(tmp_path / "former", random.Random(1), epoch=7)
    one.identity.former_leaders = [str(await former.start())]
    one.leaderships.take_lead(raises_epoch=True, epoch=2)
    one.leaderships.notify_former_leaders("")
    await until(lambda: one.replaced, "told")
    one.leaderships.stop()
    await former.stop()
    assert one.replaced[0].leadership == (7, former.identity.identity.node_id)
    assert not one.leads()
    assert IdentityFile(tmp_path / "one").identity.seen_epoch == 7


async def test_a_leader_whose_disk_refuses_to_record_a_later_one_is_fenced_all_the_same(
    tmp_path: Path, one: Node, other: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is recorded once there is room; the report of its Fencer, or of the later leader, does not come again."""
    former = LeaderSite(tmp_path / "former", random.Random(1), epoch=7)
    one.identity.former_leaders = [str(await former.start())]
    one.leaderships.take_lead(raises_epoch=True, epoch=2)
    other.leaderships.take_lead(raises_epoch=True, epoch=9)

    def refuse(file: StateFile, state: dict[str, Any]) -> None:
        raise StorageError("no room")

    with monkeypatch.context() as full:
        full.setattr(StateFile, "save", refuse)
        one.leaderships.notify_former_leaders("")
        await until(lambda: one.replaced, "told")
        assert one.leaderships.met(other.as_peer("fence"))
    one.file.save_changes()
    assert not one.leads()
    assert IdentityFile(tmp_path / "one").identity.seen_epoch == 9
    one.leaderships.stop()
    await former.stop()


def test_a_follower_that_leads_one_day_tells_all_that_led_before(one: Node, tmp_path: Path) -> None:
    """However it comes to lead: by a promotion, or by being started as a leader."""
    before = [f"tcp://10.0.0.{number}:5679" for number in range(1, FORMER_LEADERS_MAX + 1)]
    at = parse_node_uri("tcp://10.0.0.9:5679")
    one.leaderships.followed(ProvenLeader("x", "x", 3, "", "x", tuple(before)), at)
    former = IdentityFile(tmp_path / "one").identity.former_leaders
    assert former == [str(at), *before][:FORMER_LEADERS_MAX]
    one.leaderships.took_over_from(before[1])
    assert one.identity.former_leaders == [before[1], str(at), before[0], *before[2:]][:FORMER_LEADERS_MAX]


def test_who_led_asks_its_followers_whether_one_was_promoted(
    tmp_path: Path, one: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answers; another is not there, one takes the question and says nothing, and one has no proper address."""
    monkeypatch.setattr(leaderships, "_ASK_TIMEOUT_S", 0.2)
    one.leaderships.take_lead(raises_epoch=True, epoch=2)

    async def replaced(by: LeaderSite | None = None) -> bool:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            for uri in ("tcp://127.0.0.1:1", f"tcp://127.0.0.1:{port}", "nonsense", ""):
                one.identity.note_follower(uri)
            if by is not None:
                one.identity.note_follower(str(await by.start()))
            found = await one.leaderships.is_replaced()
        if by is not None:
            await by.stop()
        return found

    assert not asyncio.run(replaced())
    assert one.leads()

    async def asked() -> bool:
        return await replaced(by=LeaderSite(tmp_path / "promoted", random.Random(1), epoch=7))

    assert asyncio.run(asked())
    assert IdentityFile(tmp_path / "one").identity.is_fenced
    one.leaderships.take_lead(raises_epoch=True, epoch=0)
    assert (one.identity.followers, one.leads()) == ([], True)


def test_who_led_asks_its_former_leaders_too_which_may_have_been_told_of_another(
    tmp_path: Path, one: Node
) -> None:
    """The node that was promoted cannot be reached from here."""
    one.leaderships.take_lead(raises_epoch=True, epoch=2)

    async def asked() -> bool:
        former = LeaderSite(tmp_path / "former", random.Random(1), epoch=7)
        one.identity.former_leaders = ["tcp://127.0.0.1:1", str(await former.start())]
        found = await one.leaderships.is_replaced()
        await former.stop()
        return found

    assert asyncio.run(asked())
    assert IdentityFile(tmp_path / "one").identity.seen_epoch == 7


@pytest.mark.parametrize("promoted_epoch", [1, 7])
def test_a_promoted_node_that_is_told_to_follow_asks_its_followers_beside_its_former_leader(
    tmp_path: Path, one: Node, promoted_epoch: int
) -> None:
    """The former leader was away when one of them was promoted, and knows of nothing."""
    one.leaderships.take_lead(raises_epoch=True, epoch=2)

    async def asked() -> bool:
        former = LeaderSite(tmp_path / "former", random.Random(1), epoch=1)
        follower = LeaderSite(tmp_path / "follower", random.Random(2), epoch=promoted_epoch)
        at = await former.start()
        one.identity.former_leaders = [str(at)]
        one.identity.note_follower(str(await follower.start()))
        found = await one.leaderships.leads_on(at)
        await former.stop()
        await follower.stop()
        return found

    assert asyncio.run(asked()) is (promoted_epoch == 1)
    assert IdentityFile(tmp_path / "one").identity.is_fenced is (promoted_epoch == 7)
