"""runtime.cluster.queue_roles: what is done by the records, with logs and no broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from leveret.core.queues.backlog.offsets import OffsetSet
from leveret.core.queues.chunk_epochs import ChunkEpochs
from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import Stream
from leveret.core.replication.cluster import HandOver, LossyPromotion, Placement, first_epoch
from leveret.core.rules.mirror_policy import MirrorPolicy
from leveret.model import definitions as d
from leveret.model.errors import LeveretError
from leveret.runtime.cluster.placement import queue_roles
from leveret.runtime.cluster.placement.due_queues import DueQueues
from leveret.runtime.cluster.placement.local_queues import Lack
from leveret.runtime.cluster.placement.mirror_grace_period import MirrorGracePeriod
from leveret.runtime.cluster.placement.queue_roles import QueueRoles
from leveret.runtime.cluster.placement.queues import ClusterQueues
from leveret.runtime.logs.log_store import log_name_of
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.storage import summary
from leveret.storage.log import Log
from leveret.storage.quarantine.report import reports
from leveret.storage.summary import is_summary
from leveret.testing.network.waiting import until
from tests.unit.core.broker.test_broker import no_read
from tests.unit.runtime.mirroring.sites import Node, pair

KEY = ("/", "q")
POLICY = MirrorPolicy(mode="all", sync_mode="automatic")

NAME = "queues/0000000000000008"


def ignore(_: object) -> None:
    """No queue here is collected for a standby."""


class Keeper(QueueRoles):
    """Of a node whose broker has what is in `known`."""

    def __init__(self, node: Node, ask: Callable[[str, str, Any], Awaitable[Any]] | None = None) -> None:
        self.known: dict[Any, Any] = {}
        self.placements: dict[Any, Placement] = {}
        self.dirty: dict[Any, None] = {}
        cluster = SimpleNamespace(slave_wait_timeout_ms=10_000)
        around: Any = SimpleNamespace(
            broker=SimpleNamespace(queues=self.known, dirty=self.dirty),
            tree=node.tree,
            commits=node.commits,
            log_store=None,
            engine=None,
            collector=SimpleNamespace(led=ignore, pause=ignore, resume=ignore),
            config=SimpleNamespace(cluster=cluster),
        )
        locations: Any = SimpleNamespace(
            policy=lambda definition: POLICY,
            placement_of=lambda definition, exclusive: self.placements[definition.key],
            known=self.placements.get,
        )
        member: Any = SimpleNamespace(name="a", ask=ask)
        due = DueQueues()
        queues = ClusterQueues("a", around, due)
        grace = MirrorGracePeriod(queues, due)
        forwarding: Any = None
        self.moved: list[tuple[str, str]] = []
        super().__init__(
            member, around, queues, locations, grace, node.sources, node.copies, forwarding, self.moved.append
        )

    def declared(self, definition: d.Queue, placement: Placement) -> None:
        self.placements[definition.key] = placement
        self.make_queue(definition, no_read)


def kept_at(directory: Path) -> tuple[Node, Keeper]:
    node = Node(directory)
    return node, Keeper(node)


class QueueStub:
    """What a queue has that is asked for here."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def queue_of(epoch: int) -> Any:
    definition = d.Queue(name="q", vhost="/", epoch=epoch)
    return QueueStub(
        chunk_epochs=ChunkEpochs(),
        definition=definition,
        epoch=epoch,
        is_remote=False,
        damage=None,
        key=KEY,
        delivered_count=0,
    )


@pytest.mark.parametrize("late", [None, Placement(7, "a", "a1", 3, ("b",))])
async def test_what_comes_late_of_a_queue_before_does_nothing_to_the_one_that_was_declared_since(
    tmp_path: Path, late: Placement | None
) -> None:
    node, keeping = kept_at(tmp_path / "a")
    placement = Placement(8, "a", "a1", 1, ("b",), ("b",))
    keeping.known[KEY] = queue = queue_of(8)
    keeping.declared(queue.definition, placement)
    name = NAME
    end = node.append(name, count=3)
    await node.commits.all_durable()
    await keeping.follow(KEY, late)
    assert node.tree.logs[name].next_offset == end
    assert name in node.sources.led


async def test_a_queue_that_is_deleted_before_its_record_is_followed_leaves_no_copy(tmp_path: Path) -> None:
    """As while a node starts, between its recovery and its first look at the records."""
    node, keeping = kept_at(tmp_path / "a")
    node.append(NAME, count=3)
    await node.commits.all_durable()
    keeping.declared(queue_of(8).definition, Placement(8, "b", "b1", 1, ("a",), ("a",)))
    await keeping.follow(KEY, None)
    assert not (node.directory / NAME).exists()
    assert not keeping._queues.names


async def test_a_queue_that_was_deleted_while_its_node_entered_is_known_no_more(tmp_path: Path) -> None:
    """The node takes its definition and its deletion together, and is told neither of a record nor of its end."""
    node, keeping = kept_at(tmp_path / "a")
    node.append(NAME, count=3)
    await node.commits.all_durable()
    keeping.declared(queue_of(8).definition, Placement(8, "b", "b1", 1, ("a",), ("a",)))
    del keeping.placements[KEY]
    await keeping.all_followed()
    assert not keeping._queues.names
    assert not (node.directory / NAME).exists()


async def test_a_queue_that_is_declared_anew_again_and_again_leaves_nothing_behind(tmp_path: Path) -> None:
    """It is declared before the end of the earlier queue's record is followed, as a busy node does."""
    node, keeping = kept_at(tmp_path / "a")
    for epoch in range(8, 11):
        keeping.known[KEY] = queue_of(epoch)
        keeping.declared(keeping.known[KEY].definition, Placement(epoch, "a", "a1", 1, ("b",), ("b",)))
        node.append(log_name_of(keeping.known[KEY].definition), count=1)
        await keeping.follow(KEY, keeping.placements[KEY])
        if epoch > 8:
            node.tree.logs[f"queues/{epoch - 1:016x}"].delete()
    names = ["queues/000000000000000a"]
    assert [*keeping._queues.names.values()] == [*keeping._queues._keys] == names
    assert [*keeping._queues.complete._names] == [*node.sources.led] == [*node.tree.epochs] == names


async def test_a_deleted_queue_leaves_no_epoch_of_its_log_behind(tmp_path: Path) -> None:
    """Durable queues of single clients come and go as long as a node runs."""
    node, keeping = kept_at(tmp_path / "a")
    keeping.known[KEY] = queue_of(8)
    keeping.declared(keeping.known[KEY].definition, Placement(8, "a", "a1", 1))
    await keeping.follow(KEY, keeping.placements[KEY])
    assert [*node.tree.epochs] == [NAME]
    del keeping.known[KEY]
    await keeping.follow(KEY, None)
    assert not node.tree.epochs


async def test_a_log_stays_until_etcd_has_the_deletion_of_its_queue(tmp_path: Path) -> None:
    """The leader removed it when a record of before the deletion came late; the deletion may have failed after that."""
    node, keeping = kept_at(tmp_path / "a")
    answers = await promised(keeping, node)
    del keeping.known[KEY]
    await keeping.follow(KEY, mirrored("a", "b", "b", majority=True))
    assert (answers, [*node.sources.led]) == ([], [NAME]), "its promises are as before"
    assert node.tree.path_of(NAME).exists()
    await keeping.follow(KEY, None)
    assert (answers, [*node.sources.led]) == ([True], [])
    assert not node.tree.path_of(NAME).exists()


def test_the_engine_forgets_a_queue_that_another_node_leads(tmp_path: Path) -> None:
    """Its messages stayed in memory until the last of them would have expired."""
    _, keeping = kept_at(tmp_path / "a")
    forgotten: list[Any] = []
    queues: Any = keeping._queues
    queues._stores = SimpleNamespace(step_down=lambda queue: None)
    queues._engine = SimpleNamespace(stepped_down=forgotten.append)
    queue = queue_of(8)
    queues.step_down(queue)
    assert forgotten == [queue]


async def test_a_log_goes_once_etcd_has_another_queue_of_the_name(tmp_path: Path) -> None:
    node, keeping = kept_at(tmp_path / "a")
    await promised(keeping, node)
    del keeping.known[KEY]
    await keeping.follow(KEY, Placement(9, "b", "b1", 1))
    assert not node.tree.path_of(NAME).exists()


async def promised(keeping: Keeper, node: Node) -> list[bool]:
    """The answer to a publisher at a queue whose mirror stands still."""
    answers: list[bool] = []
    keeping.known[KEY] = queue_of(8)
    keeping.declared(keeping.known[KEY].definition, mirrored("a", "b", "b"))
    await keeping.follow(KEY, mirrored("a", "b", "b"))
    node.append(NAME, count=1)
    node.sources.when_acked([NAME], answers.append)
    await node.commits.all_durable()
    assert answers == []
    return answers


async def test_a_message_of_a_queue_that_is_deleted_is_confirmed_without_its_mirror(tmp_path: Path) -> None:
    """Otherwise its publisher's channel would get no other confirm, either: they come in order."""
    node, keeping = kept_at(tmp_path / "a")
    answers = await promised(keeping, node)
    del keeping.known[KEY]
    await keeping.follow(KEY, None)
    assert answers == [True]


async def test_a_message_of_a_queue_that_is_no_longer_mirrored_is_confirmed_by_its_leader_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, keeping = kept_at(tmp_path / "a")
    answers = await promised(keeping, node)
    other = "queues/0000000000000009"
    node.lead(other)
    node.append(other, count=1)
    node.sources.wait_for(other, frozenset("b"))
    node.sources.when_acked([NAME, other], answers.append)
    await node.commits.all_durable()
    monkeypatch.setattr(keeping._locations, "policy", lambda definition: MirrorPolicy())
    await keeping.follow(KEY, mirrored("a", ""))
    assert (answers, [*node.sources.led]) == ([True], [other])
    node.sources.wait_for(other)
    assert answers == [True, True], "of a message that is in another queue, too"


async def test_the_hand_over_of_a_queue_that_is_deleted_meanwhile_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, keeping = kept_at(tmp_path / "a")
    await promised(keeping, node)
    keeping._engine = cast(Any, SimpleNamespace(flush=lambda: None, touch=lambda: None))
    monkeypatch.setattr(keeping, "_stand_in", lambda queue: None)
    ended: list[Any] = []
    monkeypatch.setattr(keeping._queues, "step_down", ended.append)
    handing_over = asyncio.create_task(keeping.hand_over_to(KEY, "b", frozenset("b")))
    await until(lambda: KEY in keeping._queues.handed_over, "it stands still")
    queue = keeping.known.pop(KEY)
    await keeping.follow(KEY, None)
    assert await asyncio.wait_for(handing_over, 5) == frozenset(), "no mirror has all of it"
    assert ended == [queue], "its log is closed"


async def test_a_queue_that_is_declared_anew_while_it_is_handed_over_leaves_no_log_and_no_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, keeping = kept_at(tmp_path / "a")
    answers = await promised(keeping, node)
    ended: list[Any] = []
    monkeypatch.setattr(keeping._queues, "step_down", ended.append)
    keeping._queues.handed_over[KEY] = before = keeping.known[KEY]
    keeping.known[KEY] = anew = RemoteQueue(d.Queue(name="q", vhost="/", epoch=9), "b")
    keeping.declared(anew.definition, Placement(9, "b", "b1", 1, ("c",), ("c",)))
    await keeping.follow(KEY, keeping.placements[KEY])
    assert (ended, answers, [*node.sources.led]) == ([before], [True], [])
    assert not node.tree.path_of(NAME).exists()


@pytest.mark.parametrize("has_followed_the_end", [True, False])
async def test_a_mirror_that_declares_its_queue_anew_keeps_nothing_of_the_one_before(
    tmp_path: Path, has_followed_the_end: bool
) -> None:
    node, keeping = kept_at(tmp_path / "a")
    keeping._forwarding = cast(Any, SimpleNamespace(led_by=lambda queue, leader: None))
    keeping.known[KEY] = RemoteQueue(d.Queue(name="q", vhost="/", epoch=7), "b")
    await keeping.follow(KEY, Placement(7, "b", "b1", 1, ("a",), ("a",)))
    node.append("queues/0000000000000007", count=1)
    assert [*node.copies._copies] == ["queues/0000000000000007"]
    if has_followed_the_end:
        del keeping.known[KEY]
        await keeping.follow(KEY, None)
    keeping.known[KEY] = queue_of(8)
    keeping.declared(keeping.known[KEY].definition, mirrored("a", "b", "b"))
    if not has_followed_the_end:
        await keeping.follow(KEY, Placement(7, "b", "b1", 1, ("a",), ("a",)))
        assert [*node.copies._copies] == ["queues/0000000000000007"], "a record still counts on it"
        await keeping.follow(KEY, None)
    assert not node.copies._copies
    assert not node.tree.path_of("queues/0000000000000007").exists()
    await keeping.follow(KEY, mirrored("a", "b", "b"))
    assert [*node.sources.led] == [NAME]


def mirrored(leader: str = "b", mirrors: str = "a", synchronised: str = "", **more: Any) -> Placement:
    return Placement(8, leader, f"{leader}1", 1, tuple(mirrors), tuple(synchronised), **more)


@pytest.mark.parametrize(
    ("given", "delivered"),
    [(None, 1 << 63), (HandOver(1, 2), 1 << 63), (HandOver(2, 2), 2), (HandOver(2, 0), 0)],
    ids=["unknown", "of another term", "known", "nothing was delivered"],
)
async def test_a_leader_takes_for_delivered_what_the_last_one_recorded_when_it_handed_over_else_all(
    given: HandOver | None, delivered: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`b` handed the queue over to `c`, and `c` gave it to this node or was lost; it followed only the last record."""
    node, keeping = kept_at(tmp_path / "a")
    keeping.known[KEY] = RemoteQueue(d.Queue(name="q", vhost="/", epoch=8), "b")
    name = await with_copy(node)
    node.copies._cursors[name] = 1
    leading: list[int] = []

    def lead(queue: Queue, term: int, delivered: int) -> Queue:
        leading.append(delivered)
        raise LeveretError("enough")

    monkeypatch.setattr(keeping._queues, "lead", lead)
    with pytest.raises(LeveretError, match="enough"):
        await keeping.follow(KEY, replace(mirrored("a", "bc", "bc"), term=2, hand_over=given))
    assert leading == [delivered]


async def with_copy(node: Node) -> str:
    """What was received of the queue before is on disk, and nothing has it open."""
    name = NAME
    node.append(name, count=3)
    await node.commits.all_durable()
    node.commits.forget(node.tree.logs[name])
    node.tree.logs.pop(name).close()
    return name


async def test_a_copy_that_cannot_be_read_is_put_away_once_the_record_does_not_count_on_it(
    tmp_path: Path,
) -> None:
    node, keeping = kept_at(tmp_path / "a")
    keeping.known[KEY] = RemoteQueue(d.Queue(name="q", vhost="/", epoch=8), "b")
    name = await with_copy(node)
    segment = next(node.tree.path_of(name).glob("*.segment"))
    octets = bytearray(segment.read_bytes())
    octets[3] ^= 0xFF
    # What a write that was cut off leaves behind is at the end, and this is not.
    segment.write_bytes(bytes(octets) * 2)
    await keeping.follow(KEY, mirrored(synchronised="a"))
    assert keeping.is_damaged(KEY)
    assert segment.exists()
    await keeping.follow(KEY, mirrored())
    assert not keeping.is_damaged(KEY)
    assert not segment.exists()


@pytest.mark.parametrize("named_meanwhile", [True, False])
async def test_a_copy_that_the_record_does_not_name_is_deleted_when_its_leader_says_so_unless_it_is_named_by_then(
    tmp_path: Path, named_meanwhile: bool
) -> None:
    node = Node(tmp_path / "a")
    asked: list[tuple[str, str]] = []
    answers = [False, True]

    async def ask(of: str, what: str, about: Any) -> Any:
        asked.append((of, what))
        await asyncio.sleep(0)
        if len(asked) == 2 and named_meanwhile:
            await keeping.follow(KEY, mirrored(mirrors="", stopped=("a",)))
        return {"may": answers.pop(0)}

    keeping = Keeper(node, ask=ask)
    keeping.known[KEY] = RemoteQueue(d.Queue(name="q", vhost="/", epoch=8), "b")
    name = await with_copy(node)
    await keeping.follow(KEY, mirrored(mirrors="c"))
    assert asked == []
    await keeping._discarding[name]
    assert asked == [("b", "may_discard")] * 2
    assert node.tree.path_of(name).exists() is named_meanwhile


async def test_a_copy_that_may_have_lost_messages_is_compared_with_its_leader_before_it_is_deleted(
    tmp_path: Path,
) -> None:
    """The leader has no mirrors, and began its term without the copy's last three messages."""
    leader, node = Node(tmp_path / "b"), Node(tmp_path / "a")
    node.via["b"] = await leader.listen()
    asked: list[str] = []

    async def ask(of: str, what: str, about: Any) -> Any:
        asked.append(what)
        return {"may": leader.state(NAME, "a") is MirrorState.GONE}

    keeping = Keeper(node, ask=ask)
    keeping.known[KEY] = RemoteQueue(d.Queue(name="q", vhost="/", epoch=8), "b")
    name = await with_copy(node)
    leading = Keeper(leader)
    leading._me = "b"
    leading.known[KEY] = queue_of(8)
    lost = LossyPromotion(1, 0, "a")
    record = mirrored(mirrors="", lost=lost)
    leading.declared(leading.known[KEY].definition, record)
    await leading.follow(KEY, record)
    leader.tree.epochs[NAME] = first_epoch(1)
    await keeping.follow(KEY, record)
    await keeping._discarding[name]
    assert asked == ["may_discard"] * 2
    assert not node.tree.path_of(name).exists()
    assert [(log.messages, log.is_lost) for each in reports(node.directory) for log in each.logs] == [
        (3, True)
    ]


async def test_who_is_named_or_sent_something_must_keep_its_copy(tmp_path: Path) -> None:
    node, keeping = kept_at(tmp_path / "a")
    placement = mirrored("a", "b", "b", stopped=("c",))
    keeping.known[KEY] = queue_of(8)
    keeping.declared(keeping.known[KEY].definition, placement)
    name = NAME
    assert not keeping.may_discard(name, "d")
    await keeping.follow(KEY, placement)
    assert [keeping.may_discard(name, each) for each in "abcd"] == [False, False, False, True]
    node.sources.led[name].streams["d"] = cast(Any, SimpleNamespace(state=MirrorState.JOINING))
    assert not keeping.may_discard(name, "d")
    del node.sources.led[name].streams["d"]
    keeping._queues.records[KEY] = mirrored("b", "a")
    assert not keeping.may_discard(name, "d")


async def test_what_a_node_says_that_it_has_is_on_its_disk(tmp_path: Path) -> None:
    node, keeping = kept_at(tmp_path / "a")
    name = NAME
    end = node.append(name, count=3)
    log = node.tree.logs[name]
    assert log.synced_offset < end
    assert (await keeping.end(name))[1] == end
    assert log.synced_offset == end


async def test_what_a_killed_process_left_is_on_the_disk_too_before_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not opened yet: the node has just started, and has not followed the queue's record."""
    node, keeping = kept_at(tmp_path / "a")
    name = await with_copy(node)
    synced: list[Path] = []
    sync = Log.sync

    def noted(log: Log) -> None:
        synced.append(log.directory)
        sync(log)

    monkeypatch.setattr(Log, "sync", noted)
    assert (await keeping.end(name))[1] == 3
    assert node.tree.path_of(name) in synced


async def test_a_mirror_that_ended_is_not_ready_by_what_it_told_before(tmp_path: Path) -> None:
    """Nobody has noticed yet that its link is dead; another process of it may have put its copy away."""
    leader, mirror = await pair(tmp_path)
    keeping = Keeper(leader)
    keeping.known[KEY] = queue_of(8)
    name = NAME
    keeping.declared(keeping.known[KEY].definition, mirrored("a", "b", "b"))
    leader.append(name, count=3)
    mirror.copies.mirror(name, "leader")
    await until(lambda: leader.state(name, "mirror") is MirrorState.LIVE, "it is live")
    assert keeping.ready(KEY) == {"b", "mirror"}
    leader.sources.runs("mirror", "")
    assert keeping.ready(KEY) == {"b", "mirror"}
    leader.sources.runs("mirror", "another")
    assert keeping.ready(KEY) == {"b"}


async def test_a_mirror_that_still_lacks_something_is_not_ready(tmp_path: Path) -> None:
    leader, mirror = await pair(tmp_path)
    keeping = Keeper(leader)
    keeping.known[KEY] = queue_of(8)
    name = NAME
    keeping.declared(keeping.known[KEY].definition, mirrored("a", "mirror"))
    leader.append(name, count=3)
    mirror.copies.mirror(name, "leader")
    await until(lambda: leader.state(name, "mirror") is MirrorState.LIVE, "it is live")
    stream = leader.sources.led[name].streams["mirror"]
    for state in MirrorState:
        stream.state = state
        assert keeping.ready(KEY) == ({"mirror"} if state is MirrorState.LIVE else frozenset())
    stream.state = MirrorState.LIVE


Ask = Callable[[str, str, Any], Awaitable[Any]]


async def led_and_mirrored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> tuple[Node, Node, Keeper]:
    """A queue whose newest segment is not short, led by one node and mirrored by the other."""
    for module in (queue_roles, summary):
        monkeypatch.setattr(module, "SUMMARY_BYTES_MIN", 300)
    leader, mirror = await pair(folder)
    keeping = Keeper(leader, ask=ask)
    keeping.known[KEY] = queue_of(8)
    keeping.declared(keeping.known[KEY].definition, mirrored("a", "mirror"))

    def begin_segment(name: str) -> int:
        offset = leader.begin_segment(name)
        leader.commits.begin()
        return offset

    monkeypatch.setattr(keeping._queues, "begin_segment", begin_segment)
    leader.append(NAME, count=3)
    mirror.copies.mirror(NAME, "leader")
    await until(lambda: leader.state(NAME, "mirror") is MirrorState.LIVE, "it is live")
    return leader, mirror, keeping


async def test_a_mirror_that_is_to_lead_has_a_short_segment_and_a_summary_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    async def ask(of: str, what: str, about: Any) -> Any:
        asked.append((of, what))
        await Keeper(mirror).summarised(about["log"], about["offset"])
        return {}

    _leader, mirror, keeping = await led_and_mirrored(tmp_path, monkeypatch, ask)
    # The second time, all is ready.
    for _ in range(2):
        await keeping.prepare(KEY, "mirror")
    assert asked == [("mirror", "summarised")]
    assert mirror.tree.logs[NAME].newest_bytes < 300
    assert [path.name[:20] for path in mirror.tree.path_of(NAME).iterdir() if is_summary(path)] == ["0" * 20]


async def test_a_mirror_that_does_not_say_that_it_is_ready_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_roles, "_PREPARED_S", 0.05)
    answers: list[Awaitable[Any]] = []

    async def ask(of: str, what: str, about: Any) -> Any:
        if not answers:
            # As a node of an earlier version answers.
            raise LeveretError("unknown request")
        return await answers[0]

    leader, mirror, keeping = await led_and_mirrored(tmp_path, monkeypatch, ask)
    await keeping.prepare(KEY, "mirror")
    answers.append(asyncio.get_running_loop().create_future())
    leader.append(NAME, count=3)
    await keeping.prepare(KEY, "mirror")
    assert leader.tree.logs[NAME].newest_bytes < 300
    with pytest.raises(LeveretError, match="did not get offset 1000"):
        await Keeper(mirror).summarised(NAME, 1000)


@pytest.mark.parametrize("is_declared_anew", [False, True])
async def test_a_queue_that_was_deleted_here_a_moment_ago_is_not_handed_over(
    tmp_path: Path, is_declared_anew: bool
) -> None:
    keeping = Keeper(Node(tmp_path / "a"))
    keeping._engine = cast(Any, SimpleNamespace(flush=lambda: None, touch=lambda: None))
    keeping.known[KEY] = queue_of(8)
    keeping.declared(keeping.known[KEY].definition, mirrored("a", "b", "b"))
    if is_declared_anew:
        keeping.known[KEY] = queue_of(9)
    else:
        del keeping.known[KEY]
    with pytest.raises(LeveretError, match="queue 'q' in vhost '/' was deleted here"):
        await keeping.hand_over_to(KEY, "b", frozenset("b"))
    keeping.take_back(KEY)


@pytest.mark.parametrize("is_acknowledged", [True, False])
async def test_consumers_have_a_moment_to_acknowledge_what_they_have_before_a_hand_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_acknowledged: bool
) -> None:
    """They get nothing more meanwhile. What they acknowledge after a hand-over comes again."""
    monkeypatch.setattr(queue_roles, "_REST_S", 60.0 if is_acknowledged else 0.02)
    keeping = Keeper(Node(tmp_path / "a"))
    steps: list[str] = []
    keeping._engine = cast(
        Any, SimpleNamespace(flush=lambda: steps.append("flush"), touch=lambda: steps.append("touch"))
    )
    queue = keeping.known[KEY] = Queue(d.Queue(name="q", vhost="/", epoch=8), no_read)
    queue.backlog.restore(3, OffsetSet())
    queue.unacked_count = 1
    handing_over = asyncio.create_task(keeping.hand_over_to(KEY, "b", frozenset("b")))
    await asyncio.sleep(0)
    assert queue.is_resting
    queue.dispatch()
    assert not queue._offered, "nothing is offered"
    if is_acknowledged:
        await asyncio.sleep(0.03)
        assert steps == []
        queue.unacked_count = 0
    with pytest.raises(LeveretError, match="was deleted here"):
        await handing_over
    assert (steps, queue.is_resting) == (["flush", "touch"], False)
    assert queue in keeping.dirty


async def test_a_node_that_hands_many_queues_over_does_not_wait_for_each_slow_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_roles, "_REST_S", 0.02)
    monkeypatch.setattr(queue_roles, "_RESTS_S", 0.05)
    keeping = Keeper(Node(tmp_path / "a"))
    keeping._engine = cast(Any, SimpleNamespace(flush=lambda: None, touch=lambda: None))
    queue = keeping.known[KEY] = Queue(d.Queue(name="q", vhost="/", epoch=8), no_read)
    queue.unacked_count = 1
    began_s = asyncio.get_running_loop().time()
    rested = 0
    for _ in range(200):
        at_s = asyncio.get_running_loop().time()
        async with keeping._resting(KEY):
            rested += asyncio.get_running_loop().time() - at_s > 0.005
    assert asyncio.get_running_loop().time() - began_s < 200 * 0.02
    assert 1 <= rested < 20


async def test_a_queue_that_was_declared_anew_during_a_hand_over_is_not_replaced_by_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping, ended = Keeper(Node(tmp_path / "a")), list[Any]()
    monkeypatch.setattr(keeping._queues, "step_down", ended.append)
    keeping._queues.handed_over[KEY] = before = queue_of(8)
    keeping.known[KEY] = queue_of(9)
    keeping.take_back(KEY)
    assert (ended, keeping._queues.handed_over) == ([before], {})


async def test_what_a_queue_handed_out_is_told_once_it_is_handed_over_and_can_be_known(
    tmp_path: Path,
) -> None:
    keeping = Keeper(Node(tmp_path / "a"))
    queue = Queue(d.Queue(name="q", vhost="/", epoch=8), no_read)
    queue.backlog.cursor = 7
    assert keeping.delivered_before(KEY) is None
    keeping._queues.handed_over[KEY] = queue
    assert keeping.delivered_before(KEY) == 7
    queue.damage = "unreadable"
    assert keeping.delivered_before(KEY) is None
    keeping._queues.handed_over[KEY] = Stream(d.Queue(name="q", vhost="/", epoch=8), no_read)
    assert keeping.delivered_before(KEY) is None


class Stopping(Keeper):
    """A node that stops: whoever is to lead the queue gets what it may."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._engine = cast(Any, SimpleNamespace(flush=lambda: None, touch=lambda: None))

    def _stand_in(self, led: Any) -> Any:
        """No client of this node waits."""


async def test_a_mirror_without_a_copy_lacks_records_also_of_a_queue_without_messages(tmp_path: Path) -> None:
    keeping = Keeper(Node(tmp_path / "a"))
    keeping._queues.handed_over[KEY] = Queue(d.Queue(name="q", vhost="/", epoch=8), no_read)
    assert keeping.lacks(KEY, "b") == Lack(0, 0)


@pytest.mark.parametrize("is_halted", [False, True])
async def test_a_node_that_stops_has_a_mirror_synchronised_and_waits_for_it_no_longer_than_for_a_moment(
    is_halted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is led without what the mirror lacks then: that is better said after a moment than after all of the time."""
    monkeypatch.setitem(globals(), "POLICY", MirrorPolicy(mode="all"))
    leader, mirror = await pair(tmp_path)
    keeping = Stopping(leader)
    keeping.known[KEY] = queue_of(8)
    keeping.declared(keeping.known[KEY].definition, mirrored("a", "mirror"))
    leader.append(NAME, count=3)
    await leader.commits.all_durable()
    mirror.copies.mirror(NAME, "leader")
    await until(
        lambda: leader.state(NAME, "mirror") is MirrorState.UNSYNCHRONISED, "it has what comes from now on"
    )
    if is_halted:
        monkeypatch.setattr(queue_roles, "_LOSING_S", 0.05)
        monkeypatch.setattr(leader.sources, "synchronise", lambda name: None)
    async with asyncio.timeout(5):
        await keeping.hand_over_to(KEY, "mirror", frozenset(), loses=True)
    assert keeping.ready(KEY) == (frozenset() if is_halted else {"mirror"})
