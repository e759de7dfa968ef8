"""runtime.roles.passive_node: a node that shows what it has, and what becomes of what it cannot read."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leveret.config import load
from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.runtime.node.node import Node
from leveret.runtime.replication.identity import IdentityFile, NodeIdentity
from leveret.runtime.roles import passive_node
from leveret.runtime.roles.operations import ReplicationCommands
from leveret.runtime.roles.roles import Roles
from leveret.storage.secret_file import SECRET_FILE
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import Site, replicating
from tests.unit.storage.places import flip

MESSAGES = 40


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch() as path:
        yield path


async def damaged_log(directory: Path) -> str:
    """The log of a queue of several segments, one octet of the first of which is not what it was."""
    site = await Site.started(directory)
    await site.apply(d.Put(d.Vhost(name="v")), d.Put(d.Queue(vhost="v", name="q")))
    await site.publish_often(MESSAGES, 1)
    [log] = (path for path in (directory / "queues").iterdir() if path.is_dir())
    await site.kill()
    flip(log, 0, 60)
    return f"queues/{log.name}"


def octets(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.segment*"))}


async def shown(
    directory: Path, *, is_ones_own: bool, note_incomplete: Callable[[], None] = lambda: None
) -> Node:
    node = passive_node.build(
        load(None, {}),
        directory,
        stamp=1,
        failed=asyncio.Event(),
        damaged=lambda commits, error: None,
        note_incomplete=note_incomplete,
    )
    passive_node.show(node, NodeIdentity(), note_incomplete, is_ones_own=is_ones_own)
    return node


async def test_what_others_count_on_stays_as_it_is_when_it_cannot_be_read(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = await damaged_log(directory)
    before = octets(directory / log)
    node = await shown(directory, is_ones_own=True)
    assert octets(directory / log) == before, "the damaged log was changed"
    assert not (directory / "divergent").exists()
    assert f"damaged_log log={log}" in caplog.text
    assert isinstance(node.broker.queues["v", "q"], Queue)


@pytest.mark.parametrize("is_listed", [False, True], ids=["left to other nodes", "held"])
async def test_a_clusters_node_that_waits_takes_only_logs_that_it_held_for_lost(
    directory: Path, is_listed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = await damaged_log(directory)
    listed = [log] if is_listed else []
    (directory / "complete_copies.json").write_text(json.dumps({"logs": listed}))
    shutil.rmtree(directory / log)
    node = await shown(directory, is_ones_own=True)
    assert (node.broker.queues["v", "q"].damage is not None) is is_listed
    assert ("queue_down" in caplog.text) is is_listed


async def test_what_comes_anew_from_a_leader_is_put_away_whole_when_it_cannot_be_read(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = await damaged_log(directory)
    before = octets(directory / log)
    await shown(directory, is_ones_own=False)
    [place] = (directory / "divergent").glob("damaged-*")
    assert octets(place / log) == before
    assert f"damaged_log_quarantined log={log}" in caplog.text


@pytest.mark.parametrize("what", ["queue", "definitions"])
async def test_that_a_damaged_log_is_lacked_is_known_before_it_is_put_away(
    directory: Path, what: str
) -> None:
    log = await damaged_log(directory)
    if what == "definitions":
        log = what
        flip(directory / log, 0, 60)
    before = octets(directory / log)
    there: list[bool] = []
    await shown(
        directory, is_ones_own=False, note_incomplete=lambda: there.append(octets(directory / log) == before)
    )
    assert there[0]
    assert not octets(directory / log) or what == "definitions"


async def test_a_follower_whose_log_was_damaged_while_it_was_down_is_not_promoted_unless_forced(
    directory: Path,
) -> None:
    """Its leader is away, and another follower may have the log whole."""
    await damaged_log(directory)
    (directory / SECRET_FILE).write_bytes(b"5" * 64 + b"\n")
    (directory / SECRET_FILE).chmod(0o400)
    given = {
        "listeners.tcp": "none",
        "stream.listeners.tcp": "none",
        "replication.follow": "tcp://127.0.0.1:9",
    }
    identity = IdentityFile(directory)
    identity.identity.followed_epoch, identity.identity.epoch = 1, 1
    identity.save()
    roles = Roles(load(None, given), directory, ReplicationCommands)
    await roles.start()
    outcome = await roles.node.replication.promote(dry_run=False, force=False, apply_until_ms=None)
    await roles.stop()
    assert not outcome["promoted"]
    assert "was damaged" in outcome["reason"]
    assert IdentityFile(directory).identity.rewriting, "also after a crash"


async def test_a_node_that_a_change_of_its_role_has_closed_has_nothing_left_to_settle(
    directory: Path,
) -> None:
    node = Node(load(None, {}), directory)
    node.close()
    await passive_node.settle(node)


async def test_a_node_that_does_not_lead_says_of_no_outgoing_log_that_its_disk_refused_it(
    directory: Path,
) -> None:
    """It opens none: its leader does."""
    site = await replicating(directory, "q")
    await site.publish(2)
    await site.kill()
    node = await shown(directory, is_ones_own=False)
    assert [queue.replicated for queue in node.broker.queues.values()] == [True]
    assert node.upstream.collected() == []
    node.close()
