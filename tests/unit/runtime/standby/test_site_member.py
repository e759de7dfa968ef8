"""A node's part in a downstream cluster, with the cluster and the node's own downstream played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from leveret.core.replication.standby_site import (
    PROMOTIONS_MAX,
    PromotionAttempt,
    RecoveryRequest,
    SiteDecisions,
)
from leveret.core.replication.vhost_owners import VhostOwner
from leveret.model.errors import LeveretError, PreconditionFailed
from leveret.runtime.standby import site, site_member
from leveret.runtime.standby.pipeline_process import PipelineFailed
from leveret.runtime.standby.site_member import NodeDownstream, SiteMember
from leveret.testing.network.waiting import until


class Cluster:
    """The nodes n1 (the tested one) and n2, and the owners of vhosts."""

    name = "n1"
    is_shared = False
    members = ("n1", "n2")

    def __init__(self) -> None:
        self.owners: dict[str, VhostOwner] = {}
        self.running = ["n1", "n2"]
        self.noted: list[str] = []
        self.notes: list[VhostOwner] = []
        self.meanwhile: Callable[[], None] = self.owners.clear
        self.answers: dict[str, Any] = {}

    async def note(self, vhost: str, owner: VhostOwner) -> None:
        """Another node changes all records at the same time."""
        self.noted.append(vhost)
        self.notes.append(owner)
        self.meanwhile()

    async def ask(self, node: str, about: dict[str, Any]) -> dict[str, Any]:
        if about["name"] not in self.answers:
            raise LeveretError(f"{node} does not answer")
        return {"found": self.answers[about["name"]]}

    async def all_know(self) -> None:
        """All do."""

    async def wait(self, timeout_s: float) -> None:
        await asyncio.sleep(0)

    async def forget(self, vhosts: Collection[str], *, keep: Collection[str] = ()) -> None:
        """Nothing to forget."""


class Own:
    """The node's own downstream."""

    is_to_follow = True

    def __init__(self) -> None:
        self.decided = SimpleNamespace(
            promotions=[], promoting=None, site=SiteDecisions(), copy=lambda: None, decide=None
        )
        self.own_archive = SimpleNamespace(is_shared=False, unfinished_plans=self.unfinished_plans)
        self.plans: list[dict[str, Any]] = []
        self.own_recoveries = SimpleNamespace()
        self.promotion = SimpleNamespace()
        self.transfer = SimpleNamespace(
            rows=self.rows, stop=self.stop, origins=self.origins, forget=self.forget
        )
        self.has_forgotten = False
        self.is_following = False
        self.touched = 0
        self.replicated = ["v", "w"]
        self.logs: dict[str, int] = {}

    def vhosts(self) -> list[str]:
        return self.replicated

    async def unfinished_plans(self) -> list[dict[str, Any]]:
        return self.plans

    def rows(self, vhosts: list[str]) -> list[dict[str, Any]]:
        nothing = {
            "heard_ago_ms": 1,
            "missing_records": 0,
            "missing_messages": 0,
            "error": "",
            "transferred": 9,
            "lag_records": 0,
        }
        return [{"virtual_host": vhost, "state": "connected", "nodes": [], **nothing} for vhost in vhosts]

    def origins(self, vhost: str) -> dict[str, int]:
        return self.logs if vhost == "v" else {}

    async def follow(self) -> None:
        self.is_following = True

    async def stop(self) -> None:
        self.is_following = False

    def forget(self) -> None:
        assert not self.is_following
        self.has_forgotten = True

    def touch_queues(self) -> None:
        self.touched += 1

    async def delete_own_data(self) -> None:
        """There are none."""

    async def delete_own_orphans(self, wanted: Collection[str]) -> list[dict[str, Any]]:
        return [{"vhost": "v", "bytes": 5}] if self.logs else []

    def check_heard(self) -> None:
        """It was."""


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def own() -> Own:
    return Own()


@pytest.fixture
def member(cluster: Cluster, own: Own) -> SiteMember:
    return SiteMember(cast(Any, cluster), cast(NodeDownstream, cast(Any, own)))


@pytest.mark.parametrize(
    "owner", [VhostOwner("n1", 2), VhostOwner("n1", 2, holder="n2", claimed=2)], ids=["to claim", "level"]
)
async def test_a_record_that_goes_while_another_is_written_ends_nothing(
    cluster: Cluster, own: Own, member: SiteMember, owner: VhostOwner
) -> None:
    cluster.owners |= {"v": owner, "w": owner}
    await member._obey()
    assert cluster.noted == ["v"]
    assert own.is_following


async def test_a_promotion_gives_up_the_holders_in_the_records_as_they_are(
    cluster: Cluster, member: SiteMember
) -> None:
    """A record written back as it was before would deny that its owner has data by now."""
    lost = VhostOwner("n1", 2, holder="gone", claimed=0)
    cluster.owners |= {"v": lost, "w": lost, "x": lost}

    def change() -> None:
        cluster.owners["w"] = VhostOwner("n1", 2, holder="gone", claimed=2)
        cluster.owners.pop("x", None)

    cluster.meanwhile = change
    await member.check_promotion(RecoveryRequest(all_available=True))
    assert cluster.notes == [VhostOwner("n1", 2), VhostOwner("n1", 2, claimed=2)]


async def test_a_deletion_that_a_node_does_not_answer_leaves_nobody_suspended(
    own: Own, member: SiteMember
) -> None:
    with pytest.raises(LeveretError, match="n2 does not answer"):
        await member.delete_all_data()
    await member._obey()
    assert own.is_following


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_suspension_ends_with_the_deletion_whatever_becomes_of_its_node(
    cluster: Cluster, own: Own, member: SiteMember, *, is_running: bool
) -> None:
    await member.parts.answer({"name": "suspend", "suspended": True, "by": "n2"})
    assert own.has_forgotten, "the positions of what is deleted elsewhere meanwhile"
    for cluster.answers in ({"suspends": True}, {}):
        await member._obey()
        assert not own.is_following, "n2 still deletes, or is not heard for a moment"
    if is_running:
        cluster.answers = {"suspends": False}
    else:
        cluster.running = ["n1"]
    await member._obey()
    assert own.is_following


async def test_a_bug_in_one_look_ends_no_later_one(
    own: Own, member: SiteMember, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    obey, looks = member._obey, 0

    async def fails_at_first() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise KeyError("v")
        await obey()

    monkeypatch.setattr(member, "_obey", fails_at_first)
    member.start()
    await until(lambda: own.is_following, "the next look")
    await member.stop()
    assert "standby_site_not_obeyed error='v'" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_bug_in_a_recovery_is_told_to_who_waits_for_the_promotion(
    cluster: Cluster, own: Own, member: SiteMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*given: object) -> None:
        raise KeyError("summary")

    async def decide(change: Callable[[SiteDecisions], SiteDecisions]) -> None:
        own.decided.site = change(own.decided.site)
        own.decided.promoting = own.decided.site.promoting

    monkeypatch.setattr(site_member, "RETRY_S", 0.0)
    own.promotion.recover = fails
    cluster.owners |= {"v": VhostOwner("n1", 1)}
    own.decided.decide = decide
    await decide(lambda site: site.promotes(PromotionAttempt(begun_ms=1)))
    attempt = own.decided.promoting
    for _ in range(2):
        await member._recover(attempt, ["v"])
    assert own.decided.promoting.error == "n1: KeyError('summary')"


async def test_the_end_of_a_promotion_is_seen_although_no_more_of_them_are_kept(
    cluster: Cluster, own: Own, member: SiteMember
) -> None:
    kept = SiteDecisions()
    for begun_ms in range(PROMOTIONS_MAX):
        kept = kept.promotes(PromotionAttempt(begun_ms=begun_ms)).finished(begun_ms)

    def decide(decided: SiteDecisions) -> None:
        own.decided.site, own.decided.promotions = decided, decided.promotions
        own.decided.promoting = decided.promoting

    decide(kept)
    before = kept.promotions[-1:]
    member._note_promoted(kept)
    touched = own.touched
    decide(kept.promotes(PromotionAttempt(begun_ms=100)))
    waiting = asyncio.create_task(member.wait_promoted(lambda event: None, before))
    await asyncio.sleep(0)
    decide(own.decided.site.finished(200))
    await waiting
    assert len(own.decided.promotions) == PROMOTIONS_MAX
    assert own.touched == touched + 1, "the queues' expiry begins anew"
    await member.wait_promoted(lambda event: None, before)


async def test_work_of_a_caller_that_is_gone_ends_although_nobody_asks(
    member: SiteMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = asyncio.Event()

    async def work(about: object, report: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_over.set()

    monkeypatch.setattr(site, "UNSEEN_S", 0.01)
    member.parts.add({}, {"long": work})
    begun = await member.parts.answer({"name": "begin", "work": "long", "about": {}})
    await asyncio.wait_for(is_over.wait(), 60)
    assert begun["found"] not in member.parts._running
    await until(lambda: member.parts._timer is None, "the end of the looks")


async def test_what_a_promotion_recovers_from_another_archive_is_told(cluster: Cluster, own: Own) -> None:
    member = SiteMember(cast(site.StandbySite, cluster), cast(NodeDownstream, own))
    cluster.owners = {
        "mine": VhostOwner("n1", 1, claimed=1),
        "new": VhostOwner("n1", 2, holder="n2", claimed=2),
        "kept": VhostOwner("n2", 2, holder="n1", claimed=2),
    }
    assert member.followed(["mine", "new", "kept", "other"]) == ["mine", "new", "kept"]
    assert member.taking_over(["mine", "new", "kept"]) == ["new"]


async def test_an_owner_takes_over_from_a_running_holder_whose_last_records_may_be_in_its_archive_alone(
    cluster: Cluster, member: SiteMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder stored more until it read that, the upstream was lost, and nobody was told (returns 20360496)."""
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(site_member, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    cluster.owners = {"v": VhostOwner("n1", 3, holder="n2", claimed=3, beside=("n1",))}
    cluster.meanwhile = lambda: cluster.owners.update(v=cluster.notes[-1])
    for clock.now_s in (100.0, 100.5, 102.4):
        await member._obey()
        assert cluster.notes == [VhostOwner("n1", 3, claimed=3, beside=("n1", "n2"))]
    clock.now_s = 102.6
    await member._obey()
    assert cluster.notes[1:] == [VhostOwner("n1", 3, claimed=3)]


@pytest.mark.parametrize(
    ("all_available", "is_begun", "refused"),
    [(False, False, True), (True, False, False), (False, True, False)],
    ids=["a first request", "for what is available", "one that goes on"],
)
async def test_a_promotion_is_refused_if_another_archive_has_more_and_nobody_was_told(
    cluster: Cluster, own: Own, member: SiteMember, all_available: bool, is_begun: bool, refused: bool
) -> None:
    wanted = RecoveryRequest(all_available=all_available)
    cluster.owners = {"v": VhostOwner("n2", 3, claimed=3, beside=("gone",))}
    cluster.answers["status"] = {"vhosts": []}
    own.decided.promoting = PromotionAttempt(begun_ms=1, wanted=wanted) if is_begun else None
    if refused:
        with pytest.raises(
            PreconditionFailed, match="gone, which may have transferred it as well, does not run"
        ):
            await member.check_promotion(wanted)
    else:
        await member.check_promotion(wanted)


@pytest.mark.parametrize("all_available", [False, True])
async def test_a_drained_recovery_stops_if_another_archive_has_more_unless_that_was_asked_for(
    cluster: Cluster,
    own: Own,
    member: SiteMember,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    all_available: bool,
) -> None:
    async def has_more(*given: object) -> bool:
        raise PreconditionFailed("n2 has 5 records more")

    monkeypatch.setattr(site_member, "choose_drained_archive", has_more)
    cluster.owners = {"v": VhostOwner("n1", 3, claimed=3, beside=("n2",))}
    attempt = PromotionAttempt(begun_ms=1, wanted=RecoveryRequest(all_available=all_available))
    own.plans = [{"vhost": "w"}]
    if not all_available:
        with pytest.raises(PreconditionFailed):
            await member._choose_archives(attempt, ["v"])
    else:
        await member._choose_archives(attempt, ["v", "forgotten"])
        assert "5 records more" in caplog.text
    own.plans = [{"vhost": "v"}]
    await member._choose_archives(attempt, ["v"])


async def test_a_vhost_is_recovered_where_the_archive_has_everything(
    cluster: Cluster, own: Own, member: SiteMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []

    async def choose(parts: object, vhost: str, owner: VhostOwner) -> bool:
        chosen.append(vhost)
        return vhost == "w"

    monkeypatch.setattr(site_member, "choose_drained_archive", choose)
    kept = VhostOwner("n1", 3, claimed=3, beside=("n2",))
    cluster.owners = {"v": kept, "w": kept, "x": kept}
    with pytest.raises(PipelineFailed, match="vhost 'w': another node's archive has later records"):
        await member._choose_archives(PromotionAttempt(begun_ms=1), ["v", "w", "x"])
    assert chosen == ["v", "w"]
    cluster.owners = {"v": VhostOwner("n1", 3, claimed=3)}
    await member._choose_archives(PromotionAttempt(begun_ms=1), ["v"])
    assert chosen == ["v", "w"], "no other node has anything"


async def test_the_logs_whose_records_are_here_are_recorded_for_the_next_owner(
    cluster: Cluster, own: Own, member: SiteMember
) -> None:
    """While this node is away, the vhost may be made anew at the upstream: a node without data would follow that."""
    kept = VhostOwner("n2", 3, holder="n1", claimed=3, beside=("n2",))
    cluster.owners = {"v": kept, "w": kept}
    own.logs = {"v": 7}
    await member._obey()
    assert cluster.notes == [replace(kept, origins={"v": 7})]


@pytest.mark.parametrize(
    "owner",
    [
        VhostOwner("n1", 2, holder="n2", claimed=2, beside=("n1",), origins={"v": 6}),
        VhostOwner("n1", 2),
        VhostOwner("n1", 2, claimed=2, origins={"v": 7}),
    ],
    ids=["another node has the data", "nothing is here yet", "it is recorded"],
)
async def test_a_node_records_the_logs_of_no_archive_but_its_own(
    cluster: Cluster, own: Own, member: SiteMember, owner: VhostOwner
) -> None:
    cluster.owners = {"v": owner}
    own.logs = {"v": 7}
    await member._note_origins()
    assert cluster.notes == []


async def test_an_owner_is_told_the_logs_that_the_holder_has_records_of(
    cluster: Cluster, member: SiteMember
) -> None:
    cluster.owners = {
        "v": VhostOwner("n1", 2, holder="n2", claimed=2, origins={"v": 7}),
        "w": VhostOwner("n1", 1, claimed=1, origins={"w": 8}),
    }
    assert member.origins(["v", "w", "other"]) == {"v": 7}


async def test_a_vhost_whose_old_data_were_deleted_begins_anew_at_its_owner(
    cluster: Cluster, own: Own, member: SiteMember
) -> None:
    """The holder had the old vhost's, and the owner waited, as the holder did."""
    cluster.owners = {"v": VhostOwner("n2", 3, holder="n1", claimed=3, beside=("n2",), origins={"v": 7})}
    cluster.answers["delete_orphans"] = []
    own.logs = {"v": 7}
    assert await member.delete_orphaned_data() == [{"node": "n1", "vhost": "v", "bytes": 5}]
    assert cluster.notes == [VhostOwner("n2", 3, claimed=3)]


@pytest.mark.parametrize(("state", "is_refused"), [("recover", True), ("connected", False)])
async def test_what_an_owner_waits_for_is_told_if_the_node_with_the_old_data_is_stopped(
    cluster: Cluster, member: SiteMember, state: str, is_refused: bool
) -> None:
    cluster.owners = {"v": VhostOwner("n2", 3, holder="gone", claimed=3, origins={"v": 7})}
    cluster.answers |= {
        "delete_orphans": [],
        "status": {"vhosts": [{"virtual_host": "v", "state": state}]},
    }
    if is_refused:
        with pytest.raises(PreconditionFailed, match="its data are at node gone, which does not run"):
            await member.delete_orphaned_data()
    else:
        assert await member.delete_orphaned_data() == []


async def test_a_node_that_ends_waits_for_the_end_of_its_work(member: SiteMember) -> None:
    """A thread may quarantine records of its logs, which the next role of the process truncates."""
    goes_on, story = asyncio.Event(), list[str]()

    async def work(about: object, report: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await goes_on.wait()
            story.append("work")

    member.parts.add({}, {"long": work})
    await member.parts.answer({"name": "begin", "work": "long", "about": {}})
    await asyncio.sleep(0)
    stopping = asyncio.create_task(member.stop())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not stopping.done()
    goes_on.set()
    await stopping
    assert story == ["work"]
