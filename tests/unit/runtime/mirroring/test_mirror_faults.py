"""Links that are cut at any octet or altered, disks that are full, mirrors that are killed: copies stay copies.

A test's parameter is the seed of all that is random in it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from leveret.runtime.link import heartbeat
from leveret.runtime.mirroring import copy_link, source_link, source_stream
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.storage.log import Log
from leveret.storage.open_segments import OutOfDescriptors
from leveret.testing.applications.compare import logs_of
from leveret.testing.network.link_proxy import Direction, LinkProxy
from leveret.testing.network.waiting import until
from leveret.wire import link
from leveret.wire.chunk import ChunkType, encode_entry
from tests.seeds import seeds
from tests.unit.runtime.mirroring.sites import NAMES, Node, compared, compared_when_stopped, mirrored, pair

pytestmark = pytest.mark.process

A = NAMES[0]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long before a link is begun anew, and all is sent in small steps."""
    monkeypatch.setattr(copy_link, "RETRY_S", (0.005,))
    # A length that was altered has both sides wait.
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.5)
    monkeypatch.setattr(source_stream, "FINAL_BYTES", 1500)
    monkeypatch.setattr(source_stream, "STEP_BYTES", 3000)


@pytest.mark.parametrize("seed", seeds(8, each_time=2))
async def test_a_link_that_is_cut_at_any_octet_or_altered_loses_nothing(tmp_path: Path, seed: int) -> None:
    """While it synchronises, both what is new and what was there before; while it is live."""
    dice = random.Random(seed)

    async def scenario(proxy: LinkProxy, leader: Node, mirror: Node) -> None:
        describe: list[int] = []
        names = NAMES[:2]
        for name in names:
            leader.fill(name, 40_000)
        proxy.target_port = await leader.listen()
        mirror.via["leader"] = proxy.port
        leader.lead(*names, automatic=True)
        for _ in range(12):
            direction = dice.choices(list(Direction), [1, 4])[0]
            octets = dice.randint(1, 400 if direction is Direction.FORTH else 25_000)
            if dice.random() < 0.4:
                proxy.flip(octets, direction, dice.randint(0, 7))
            else:
                proxy.cut_after(octets, direction, abruptly=dice.random() < 0.5)
        for name in names:
            mirror.copies.mirror(name, "leader")
            leader.sources.wait_for(name, frozenset({"mirror"}))
        for _ in range(60):
            for _ in range(8):
                leader.append(dice.choice(names), dice.choice([3, 900]), dice.randint(1, 5))
                leader.promise(describe, *names)
            leader.commits.begin()
            await asyncio.sleep(0.002)
            if dice.random() < 0.1:
                leader.sources.cancel_synchronise(names[0])
                leader.sources.synchronise(names[0])
            if not proxy.faults:
                break
        proxy.heal()
        await until(lambda: leader.is_live("mirror", *names), "live at the end")
        assert len(describe) == leader.promised
        assert proxy.cuts or proxy.accepted > 1

    leader, mirror = Node(tmp_path / "leader"), Node(tmp_path / "mirror")
    with LinkProxy(1) as proxy:
        await scenario(proxy, leader, mirror)
        assert (await compared_when_stopped(leader, mirror)).is_identical


async def test_a_log_that_no_descriptor_was_left_for_is_mirrored_a_moment_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mirror asked for it again until the link was begun anew."""
    monkeypatch.setattr(source_link, "_READ_AGAIN_S", 0.02)
    leader, mirror = await pair(tmp_path)
    leader.fill(A, 40_000)
    read, refusals = Log.read_segments, iter(range(3))

    def scarce(log: Log, offset: int, bytes_max: int) -> Any:
        if next(refusals, None) is not None:
            raise OutOfDescriptors("too many open files")
        return read(log, offset, bytes_max)

    monkeypatch.setattr(Log, "read_segments", scarce)
    leader.lead(A, automatic=True)
    await mirrored(leader, mirror, A)
    assert next(refusals, None) is None
    assert (await compared_when_stopped(leader, mirror)).is_identical


async def test_a_flush_that_no_frame_holds_comes_from_disk_by_a_new_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "FRAME_BYTES_MAX", 12_000)
    described: list[int] = []
    leader, mirror = await pair(tmp_path, led=A)
    mirror.copies.mirror(A, "leader")
    leader.append(A)
    await until(lambda: leader.is_live("mirror", A), "live")
    leader.sources.wait_for(A, frozenset({"mirror"}))
    log = leader.log(A)
    for _ in range(4):
        log.append(ChunkType.USER, 1, 1, encode_entry(b"m" * 4000), 0)
        leader.commits.appended(log)
    leader.promise(described, A)
    leader.commits.begin()
    await until(lambda: len(described) == 1, "the promise is kept")
    assert (await compared_when_stopped(leader, mirror)).is_identical


@pytest.mark.parametrize("budget", [0, 700, 9_000, 33_000])
async def test_a_mirror_whose_disk_is_full_goes_on_when_there_is_room(
    tmp_path: Path, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it cannot write its leader hears at once; nothing is acked, nothing is lost."""
    left = [budget]
    writes = os.pwritev

    def pwritev(fd: int, octets: Sequence[Any], at: int) -> int:
        if "/mirror/" in os.readlink(f"/proc/self/fd/{fd}"):
            size = sum(map(len, octets))
            if size > left[0]:
                writes(fd, [b"".join(octets)[: left[0]]], at)
                raise OSError(28, "No space left on device")
            left[0] -= size
        return writes(fd, octets, at)

    leader, mirror = await pair(tmp_path)
    leader.fill(A, 30_000)
    leader.lead(A, automatic=True)
    monkeypatch.setattr(os, "pwritev", pwritev)
    mirror.copies.mirror(A, "leader")
    describe: list[int] = []
    leader.sources.wait_for(A, frozenset({"mirror"}))
    while (A, "mirror", MirrorState.GONE) not in leader.states:
        leader.append(A, 900)
        leader.promise(describe, A)
        await asyncio.sleep(0.001)
    assert not leader.is_live("mirror", A)
    left[0] = 1 << 40
    await until(lambda: leader.is_live("mirror", A), "live again")
    assert len(describe) == leader.promised
    assert mirror.log(A).next_offset == leader.log(A).next_offset
    assert (await compared_when_stopped(leader, mirror)).is_identical


@pytest.mark.parametrize("seed", seeds(4, each_time=2))
async def test_a_torn_tail_at_the_mirror_is_sent_again(tmp_path: Path, seed: int) -> None:
    """Power went while it wrote: of its newest segment the end is missing, or zero."""
    dice = random.Random(seed)
    leader, mirror = await pair(tmp_path, led=A)
    leader.fill(A, 20_000)
    await mirrored(leader, mirror, A)
    for _ in range(5):
        leader.append(A, 900)
    await until(lambda: leader.is_live("mirror", A), "live")
    await mirror.stop()
    await until(lambda: not leader.sources.rows(A), "away")
    segments = logs_of(mirror.directory)[A]
    newest = segments[max(segments)]
    torn = dice.randint(1, newest.stat().st_size)
    octets = newest.read_bytes()[:-torn]
    newest.write_bytes(octets + bytes(torn if dice.random() < 0.5 and torn > 64 else 0))
    leader.append(A)
    again = Node(mirror.directory)
    again.via = mirror.via
    await mirrored(leader, again, A)
    assert (await compared_when_stopped(leader, again)).is_identical
    assert not (again.directory / "divergent").exists()


@pytest.mark.parametrize("was_used", [False, True])
async def test_a_leader_that_ends_once_it_began_a_segment_for_a_mirror_goes_on_with_it(
    tmp_path: Path, was_used: bool
) -> None:
    """A new mirror has what was there in front of a new segment.

    Of an unused one, as nodes of before made them, the leader knows nothing after a restart.
    """
    leader, mirror = await pair(tmp_path, led=A)
    leader.fill(A, 20_000)
    while leader.log(A).starts_segment:
        leader.append(A)
    leader.log(A).sync()
    if not was_used:
        leader.begin_segment = lambda name: leader.log(name).roll().first_offset  # type: ignore[method-assign]
    await mirrored(leader, mirror, A)
    await until(lambda: mirror.log(A).first_offset == leader.log(A).first_offset, "whole")
    assert mirror.log(A).starts_segment != was_used
    await leader.stop()
    again = Node(leader.directory)
    mirror.via["leader"] = await again.listen()
    again.lead(A, automatic=True)
    for _ in range(3):
        again.append(A, 50)
    await until(lambda: again.is_live("mirror", A), "live again")
    assert (await compared_when_stopped(again, mirror)).is_identical


async def test_a_damaged_copy_is_put_away_and_copied_anew(tmp_path: Path) -> None:
    leader, mirror = await pair(tmp_path, led=A)
    leader.fill(A, 20_000)
    await mirrored(leader, mirror, A)
    await mirror.stop()
    await until(lambda: not leader.sources.rows(A), "away")
    segments = logs_of(mirror.directory)[A]
    newest = segments[max(segments)]
    newest.write_bytes(b"\xff" + newest.read_bytes()[1:])
    again = Node(mirror.directory)
    again.via = mirror.via
    await mirrored(leader, again, A)
    assert (await compared_when_stopped(leader, again)).is_identical
    [put_away] = again.directory.glob("divergent/damaged-*")
    assert logs_of(put_away)[A].keys() == segments.keys()


def every_rename(monkeypatch: pytest.MonkeyPatch, seen: Callable[[], None]) -> None:
    """Look before and after each rename below a mirror: what a crash there would leave is what is there then."""
    renames = Path.rename

    def rename(self: Path, target: Path) -> Path:
        is_of_mirror = "/mirror/" in str(self)
        if is_of_mirror:
            seen()
        moved = renames(self, target)
        if is_of_mirror:
            seen()
        return moved

    monkeypatch.setattr(Path, "rename", rename)


async def test_a_crash_while_the_head_is_moved_in_leaves_a_whole_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of the mirror's directory at each such moment are opened: each a contiguous part of the leader's log."""
    images: list[Path] = []
    prepends = Log.prepend

    def prepend(self: Log, head: Log) -> None:
        assert head.synced_offset == head.next_offset == self.first_offset
        prepends(self, head)

    def take_image() -> None:
        image = tmp_path / f"image{len(images)}"
        for path in (tmp_path / "mirror").rglob("*"):
            if path.is_file():
                target = image / path.relative_to(tmp_path / "mirror")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
        images.append(image)

    leader, mirror = await pair(tmp_path)
    leader.fill(A, 40_000)
    leader.lead(A)
    mirror.copies.mirror(A, "leader")
    await until(lambda: leader.state(A, "mirror") is MirrorState.UNSYNCHRONISED, "unsynchronised")
    every_rename(monkeypatch, take_image)
    monkeypatch.setattr(Log, "prepend", prepend)
    leader.sources.synchronise(A)
    await until(lambda: leader.is_live("mirror", A), "live")
    every_rename(monkeypatch, lambda: None)
    await mirror.stop()
    await until(lambda: not leader.sources.rows(A), "away")
    assert len(images) >= 8
    firsts = set()
    for image in images:
        if not (image / A).exists():
            continue
        node = Node(image, "mirror")
        node.via = mirror.via
        ends = node.copies.ends(A)
        assert ends is not None
        firsts.add(ends.first_offset)
        node.copies.mirror(A, "leader")
        leader.sources.led[A].automatic = True
        await until(lambda: leader.is_live("mirror", A), "live")
        await node.stop()
        await until(lambda: not leader.sources.rows(A), "away")
        assert compared(leader, node).is_identical
        assert not (image / "divergent").exists()
    assert len(firsts) >= 4


MIRROR = """
import asyncio, sys
from pathlib import Path
from tests.unit.runtime.mirroring.sites import Node

async def run(directory, port, names):
    node = Node(Path(directory), "mirror")
    node.via["leader"] = int(port)
    for name in names:
        node.copies.mirror(name, "leader")
    print("mirroring", flush=True)
    await asyncio.sleep(3600)

asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3:]))
"""


async def test_a_mirror_that_is_killed_again_and_again_has_what_was_promised(tmp_path: Path) -> None:
    """`kill -9` of a real process, while it synchronises and while it is live."""
    dice = random.Random(5)
    names = NAMES[:3]
    leader = Node(tmp_path / "leader")
    port = await leader.listen()
    for name in names:
        leader.fill(name, 200_000)
    leader.lead(*names, automatic=True)
    promised: dict[str, int] = dict.fromkeys(names, 0)

    def promise(name: str) -> None:
        end = leader.append(name, dice.choice([10, 900]), dice.randint(1, 9))
        leader.sources.when_acked([name], lambda _: promised.update({name: end}))
        leader.commits.begin()

    for name in names:
        leader.sources.wait_for(name, frozenset({"mirror"}))
    for kill in range(4):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", MIRROR, str(tmp_path / "mirror"), str(port), *names,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert await process.stdout.readline() == b"mirroring\n"
        if kill % 2:
            await until(lambda: leader.is_live("mirror", *names), "live")
        for _ in range(dice.randint(5, 60)):
            for _ in range(dice.randint(1, 5)):
                promise(dice.choice(names))
            await asyncio.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await until(lambda: not leader.sources.rows(names[0]), "away")
        mirror = Node(tmp_path / "mirror")
        for name in names:
            ends = mirror.copies.ends(name)
            assert ends is not None or not promised[name]
            if ends is not None:
                assert promised[name] <= ends.next_offset <= leader.log(name).next_offset
        await mirror.stop()
    mirror = Node(tmp_path / "mirror")
    mirror.via["leader"] = port
    await mirrored(leader, mirror, *names)
    assert promised == {name: leader.log(name).next_offset for name in names}
    assert (await compared_when_stopped(leader, mirror)).is_identical
