"""Files of logs that are exchanged, or gone, at rest or while the node runs: no queue with such a log is served."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.core.queues.confirms import ConfirmBatch
from leveret.model import definitions as d
from leveret.runtime.node import upkeep
from leveret.storage.log import Log
from leveret.testing.network.waiting import until
from tests.unit.runtime.collecting.site import Site


async def started(directory: Path, names: tuple[str, ...] = ("q", "r")) -> Site:
    site = await Site.started(directory)
    await site.apply(d.Put(d.Vhost(name="v")), *(d.Put(d.Queue(name=name, vhost="v")) for name in names))
    return site


def log_of(site: Site, name: str = "q") -> Path:
    return site.directory / "queues" / f"{site.queue(name).epoch:016x}"


def sealed(log: Path) -> list[Path]:
    return sorted(log.glob("*.sealed.segment"))


async def test_two_queues_whose_directories_were_exchanged_are_both_down_and_name_both(
    tmp_path: Path,
) -> None:
    site = await started(tmp_path / "data")
    await site.publish(3, "q")
    await site.publish(3, "r")
    one, two = log_of(site, "q"), log_of(site, "r")
    await site.kill()
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)
    await site.start()
    for name, own, other in (("q", one, two), ("r", two, one)):
        damage = site.queue(name).damage or ""
        assert f"log queues/{own.name}" in damage
        assert f"belongs to log queues/{other.name}" in damage


@pytest.mark.parametrize("dropped", [False, True])
async def test_a_queue_whose_oldest_segment_is_gone_is_down_and_says_what_is_missing(
    tmp_path: Path, dropped: bool
) -> None:
    site = await started(tmp_path)
    await site.publish_often(60, 1)
    if dropped:
        queue = site.queue()
        for _ in range(10):
            run = queue.take(1)[0][0]
            queue.settle(run.first, 1)
            await site.touched()
        assert int(sealed(log_of(site))[0].name[:20]) > 0
    await site.restart()
    assert site.queue().damage is None, "what was dropped with reason is not missing"
    held = site.queue().message_count
    first, second = sealed(log_of(site))[:2]
    await site.kill()
    first.unlink()
    await site.start()
    missing = f"offsets {int(first.name[:20])} to {int(second.name[:20]) - 1} are missing"
    assert missing in (site.queue().damage or "")
    assert held == 60 - 10 * dropped


async def test_a_segment_of_an_older_copy_is_told_from_the_one_that_belongs_there(tmp_path: Path) -> None:
    site = await started(tmp_path / "data")
    await site.publish(1)
    copy = tmp_path / "copy"
    await site.kill()
    shutil.copytree(site.directory, copy)
    await site.start()
    await site.publish_often(40, 1)
    log = log_of(site)
    names = sorted(path.name for path in sealed(log))
    await site.kill()
    other = await Site.started(copy)
    other.published = 500
    await other.publish_often(40, 1)
    await other.kill()
    # The same offsets, from another life of the very same queue.
    shutil.copy(copy / "queues" / log.name / names[1], log / names[1])
    (log / names[1]).with_name(f"{names[1][:20]}.summary").unlink(missing_ok=True)
    await site.start()
    assert "does not follow chunk" in (site.queue().damage or "")


async def test_a_log_from_before_segments_named_it_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Log.__init__

    def nameless(self: Log, *args: object, name: str = "", **more: object) -> None:
        made(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Log, "__init__", nameless)
    site = await started(tmp_path)
    bodies = await site.publish(3)
    assert not list(log_of(site).glob("*.begin"))
    await site.kill()
    monkeypatch.undo()
    await site.start()
    assert site.contents() == bodies
    assert [path.name for path in log_of(site).glob("*.begin")] == [f"{0:020d}.begin"]


# -- while the node runs ----------------------------------------------------------------------


def outcomes(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What publishers of `q` are told from now on, by the engine's own promise."""
    confirmed: list[bool] = []
    engine = site.node.engine
    durable = site.node.commits.when_confirmable

    class Channel:
        def confirm(self, batch: ConfirmBatch, ok: bool) -> None:
            confirmed.append(ok)

    def publish_too() -> None:
        batch = ConfirmBatch()
        batch.queues[site.queue()] = True
        durable(lambda: engine._confirm([(Channel(), batch)], ok=True))  # type: ignore[list-item]

    real = engine._promise

    def promise() -> None:
        real()
        publish_too()

    monkeypatch.setattr(engine, "_promise", promise)
    return confirmed


def remove(log: Path) -> None:
    shutil.rmtree(log)


def move(log: Path) -> None:
    log.rename(log.with_name("elsewhere"))


def remove_newest(log: Path) -> None:
    max(log.glob("*.segment")).unlink()


def exchange_newest(log: Path) -> None:
    newest = max(log.glob("*.segment"))
    octets = newest.read_bytes()
    newest.unlink()
    newest.write_bytes(octets)


@pytest.mark.parametrize(
    ("harm", "idle"),
    [
        (remove, False),
        (remove, True),
        (move, False),
        (move, True),
        (remove_newest, False),
        (remove_newest, True),
        (exchange_newest, False),
    ],
)
async def test_nothing_is_confirmed_that_went_into_a_file_which_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None], idle: bool
) -> None:
    site = await started(tmp_path)
    await site.publish(3)
    await site.publish(3, "r")
    if idle:
        # As after a start: no descriptor is held, and the next append opens the file by its name.
        site.node._queues.log(site.queue()).close()
    confirmed = outcomes(site, monkeypatch)
    harm(log_of(site))
    await site.publish(1)
    assert site.queue().damage is not None
    assert confirmed
    assert not any(confirmed)
    assert not site.node.failed.is_set()
    await site.publish(1, "r")
    assert (site.queue("r").damage, site.queue("r").message_count) == (None, 4)


async def test_a_queue_that_nobody_uses_is_down_once_its_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "_WATCH_EVERY_S", 0.01)

    site = await started(tmp_path)
    await site.publish(3)
    await site.publish(3, "r")
    with caplog.at_level(logging.ERROR):
        shutil.rmtree(log_of(site))
        await until(lambda: site.queue().damage is not None)
    assert "queue_down vhost=v queue=q" in caplog.text
    assert site.queue("r").damage is None


async def test_a_directory_that_goes_while_the_disk_lists_nothing_is_noticed_once_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "_WATCH_EVERY_S", 0.01)

    site = await started(tmp_path)
    await site.publish(3)
    store = site.node.log_store
    store.names_there()

    def refused(place: Path) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", refused)
        shutil.rmtree(log_of(site))
        await until(lambda: "logs_not_watched" in caplog.text)
    await until(lambda: site.queue().damage is not None)


async def test_a_directory_of_which_the_disk_says_nothing_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await started(tmp_path)
    await site.publish(3)

    def refused(self: Path, **given: bool) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refused)
        assert site.node.log_store.gone({"queues": set()}) == []
