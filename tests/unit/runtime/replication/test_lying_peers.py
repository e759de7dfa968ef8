"""Peers that lie, in every phase of a link: it ends with a sentence, nothing is written, and no promise is kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pytest

from leveret.core.replication.sender import SendPhase
from leveret.model.errors import LeveretError
from leveret.runtime.mirroring import source_stream
from leveret.runtime.mirroring.source_link import SourceLink
from leveret.runtime.replication import sent_node
from leveret.runtime.replication.outbound import Outbound
from leveret.session.link_handshake import ProvenFollower
from leveret.testing.network.waiting import until
from leveret.wire import link as wire
from leveret.wire.link import LogExtent, Type, pack
from tests.seeds import seeds
from tests.unit.runtime.mirroring.sites import NAMES, Node
from tests.unit.runtime.mirroring.test_source_link import Peer
from tests.unit.runtime.replication.link_sites import LeaderSite

NAME: Final = NAMES[0]
WRONG_NAMES: Final = [
    "../../etc/passwd",
    "/etc/passwd",
    "",
    ".secret",
    "replication.json",
    "queues/..",
    "a\0b",
    "x" * 2000,
]
RIGHT_NAMES: Final = [NAME, NAMES[1], "definitions", "queues/00000000000000ff"]


def payload(kind: Type, what: msgspec.Struct) -> memoryview:
    return memoryview(pack(kind, what))[5:]


def extent(dice: random.Random, name: str) -> LogExtent:
    first = dice.choice([0, 0, 1, 3, -1, 1 << 62, 1 << 63])
    end = dice.choice([first, first + 3, 0, 1 << 40])
    return LogExtent(name, first, end, dice.choice([b"", b"", dice.randbytes(48), dice.randbytes(7)]))


def lies(dice: random.Random, sent: int) -> Iterator[tuple[Type, memoryview]]:
    """Messages with checks that hold, and what no peer that follows the protocol says; no ack of what was sent."""
    while True:
        kind = dice.choice([each for each in Type if each > Type.REFUSED])
        name = dice.choice(RIGHT_NAMES + WRONG_NAMES)
        what: msgspec.Struct
        match kind:
            case Type.ACK:
                what = wire.Acked(sent + dice.randint(1, 1 << 50), 0)
            case Type.COPIES:
                head = extent(dice, name) if dice.random() < 0.3 else None
                what = wire.MirrorInventory([wire.Copy(dice.randint(0, 9), extent(dice, name), head)])
            case Type.INVENTORY:
                what = wire.Inventory([extent(dice, name)], [name], dice.random() < 0.5)
            case Type.HEADERS:
                headers = [dice.randbytes(dice.choice([48, 48, 3])) for _ in range(dice.randint(0, 3))]
                what = wire.Headers(name, headers)
            case Type.RELEASED | Type.REPORT_AGAIN:
                what = wire.LogNames([dice.choice(WRONG_NAMES)])
            case Type.FAILED:
                what = wire.CopyFailed(dice.choice(WRONG_NAMES), "x")
            case Type.TAKE_OVER | Type.STREAMING | Type.HANDED_OVER:
                what = wire.Number(dice.choice([0, 1, 1 << 63]))
            case _:
                yield kind, memoryview(dice.randbytes(dice.randint(0, 60)))
                continue
        octets = payload(kind, what)
        match dice.choice(["whole", "whole", "whole", "garbled", "short"]):
            case "garbled":
                wrong = bytearray(octets)
                wrong[dice.randrange(len(wrong))] ^= 1 << dice.randrange(8)
                octets = memoryview(bytes(wrong))
            case "short":
                octets = octets[: dice.randrange(len(octets))]
        yield kind, octets


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(directory)): each.read_bytes()
        for each in sorted(directory.rglob("*"))
        if each.is_file()
    }


def says_until_it_ends(received: Callable[[Type, memoryview], None], dice: random.Random, sent: int) -> None:
    """Nothing but an error that is meant for its reader ends the link."""
    for _, (kind, octets) in zip(range(40), lies(dice, sent), strict=False):
        try:
            received(kind, octets)
        except LeveretError:
            return


MIRROR_PHASES: Final = [
    SendPhase.COMPARING,
    SendPhase.CATCHING_UP,
    SendPhase.LIVE,
    SendPhase.JOINED,
    SendPhase.ENDED,
]


@pytest.mark.parametrize("phase", MIRROR_PHASES)
@pytest.mark.parametrize("seed", seeds(12, each_time=4))
async def test_a_mirror_that_lies_gets_no_promise_kept_and_nothing_written(
    tmp_path: Path, phase: SendPhase, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_stream, "FINAL_BYTES", 1)
    dice, node = random.Random(f"{phase} {seed}"), Node(tmp_path / "leader")
    node.fill(NAME, 20_000)
    await node.commits.all_durable()
    node.lead(NAME, automatic=True)
    node.sources.wait_for(NAME, frozenset({"b"}))
    told: list[int] = []
    peer = Peer()
    link = cast(SourceLink, node.sources.accept(cast(Any, peer), "b"))
    if phase is not SendPhase.COMPARING:
        link.stop_steps()
    link.received(
        Type.COPIES,
        payload(Type.COPIES, wire.MirrorInventory([wire.Copy(1, LogExtent(NAME, 0, 0, b""), None)])),
    )
    stream = link.streams[NAME]
    while (
        phase in (SendPhase.CATCHING_UP, SendPhase.LIVE, SendPhase.JOINED) and stream.scope.phase is not phase
    ):
        await stream.step(lambda: 0)
        if phase is SendPhase.JOINED and stream.scope.phase is SendPhase.LIVE:
            link.received(Type.ACK, payload(Type.ACK, wire.Acked(link.sender.sent, 0)))
    if phase is SendPhase.ENDED:
        link.end(NAME)
    assert stream.scope.phase is phase
    node.append(NAME)
    node.promise(told, NAME)
    node.sources.cut()
    await node.commits.all_durable()
    before, acked = files_below(node.directory), link.sender.acks.cut
    says_until_it_ends(link.received, dice, link.sender.sent)
    await node.commits.all_durable()
    assert told == []
    assert link.sender.acks.cut == acked
    assert not node.sources.has_all(NAME, "b")
    if phase is not SendPhase.COMPARING:
        # A mirror that reports anew may have a segment begun for it.
        assert files_below(node.directory).keys() == before.keys() or NAME in link.streams


FOLLOWER_PHASES: Final = [
    SendPhase.REPORTING,
    SendPhase.COMPARING,
    SendPhase.CATCHING_UP,
    SendPhase.LIVE,
    SendPhase.JOINED,
]


def joining(leader: LeaderSite) -> Outbound:
    """The link of a follower that has proven the secret."""
    peer = Peer()
    cast(Any, peer).sent_bytes, cast(Any, peer).channel = 0, b""
    follower = ProvenFollower(
        kind="follow", node_id="f" * 24, name="f", epoch=1, leader_id="", followed_epoch=0, led=False, uri=""
    )
    return Outbound(leader.listener._leading, cast(Any, peer), follower, leader.listener._ended)


@pytest.mark.parametrize("phase", FOLLOWER_PHASES)
@pytest.mark.parametrize("seed", seeds(12, each_time=4))
async def test_a_follower_that_lies_is_not_in_sync_and_gets_nothing_written(
    tmp_path: Path, phase: SendPhase, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(now_ms: Callable[[], int]) -> bool:
        await asyncio.Event().wait()
        return False

    if phase is SendPhase.CATCHING_UP:
        monkeypatch.setattr(sent_node, "FINAL_BYTES", -1)
    dice, leader = random.Random(f"{phase} {seed}"), LeaderSite(tmp_path / "leader", random.Random(1))
    leader.append(NAME)
    await leader.commits.all_durable()
    link = joining(leader)
    scope = link.sending.scope
    if phase is SendPhase.COMPARING:
        monkeypatch.setattr(link.sending, "step", never)
    if phase is not SendPhase.REPORTING:
        link.received(Type.INVENTORY, payload(Type.INVENTORY, wire.Inventory([], [], True)))
        await until(lambda: scope.phase in (phase, SendPhase.LIVE), "in that phase")
    if phase is SendPhase.JOINED:
        link.received(Type.ACK, payload(Type.ACK, wire.Acked(link.sender.sent, 0)))
    assert scope.phase is phase
    leader.append(NAME)
    position = leader.feed.cut()
    before, committed = files_below(leader.directory), leader.feed.committed()
    says_until_it_ends(link.received, dice, link.sender.sent)
    assert link.sender.acks.cut < position
    assert leader.feed.committed() == committed
    assert (committed < position) == (phase is SendPhase.JOINED)
    assert files_below(leader.directory) == before
    link.ended(None)


@pytest.mark.parametrize(
    "extents",
    [
        lambda at: [LogExtent(f"queues/{at}-{number}", 0, 0, b"") for number in range(10)],
        lambda at: [LogExtent(f"{at}/" + "x" * 1_000_000, 0, 0, b"")],
    ],
)
async def test_a_report_that_does_not_end_ends_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extents: Callable[[int], list[LogExtent]]
) -> None:
    monkeypatch.setattr(sent_node, "LOGS_MAX", 100)
    monkeypatch.setattr(sent_node, "_REPORT_BYTES_MAX", 2_500_000)
    leader = LeaderSite(tmp_path / "leader", random.Random(1))
    link = joining(leader)

    def report_all() -> None:
        for at in range(11):
            link.received(Type.INVENTORY, payload(Type.INVENTORY, wire.Inventory(extents(at), [], False)))

    with pytest.raises(wire.LinkError, match="more than 100 logs"):
        report_all()
    link.ended(None)


async def test_a_mirror_that_wants_ever_more_logs_ends_its_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "LOGS_MAX", 100)
    node = Node(tmp_path / "leader")
    link = cast(SourceLink, node.sources.accept(cast(Any, Peer()), "b"))

    def want(names: range) -> None:
        for at in names:
            copy = wire.Copy(1, LogExtent(f"queues/{at:016x}", 0, 0, b""), None)
            link.received(Type.COPIES, payload(Type.COPIES, wire.MirrorInventory([copy])))

    want(range(100))
    with pytest.raises(wire.LinkError, match="more than 100 logs"):
        want(range(100, 101))
