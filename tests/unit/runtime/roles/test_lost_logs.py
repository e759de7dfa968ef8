"""Logs that are removed while a node is down: it knows that it had them, and does not stand before nodes that may have
them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leveret.config import load
from leveret.model import definitions as d
from leveret.model.errors import PreconditionFailed
from leveret.runtime.node.node import Node
from leveret.runtime.replication.identity import IdentityFile
from leveret.runtime.roles import passive_node
from leveret.runtime.roles.operations import ReplicationCommands
from leveret.runtime.roles.roles import Roles
from leveret.storage.secret_file import SECRET_FILE
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import Site

OPTIONS = {"listeners.tcp": "none", "stream.listeners.tcp": "none", "disk_reserve": "0"}
STREAM = d.Queue(vhost="v", name="s", arguments={"x-queue-type": "stream"})


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch() as path:
        yield path


def queue_log(directory: Path) -> Path:
    [log] = (directory / "queues").iterdir()
    return log


def remove_queue(directory: Path) -> None:
    shutil.rmtree(queue_log(directory))


def remove_segments(directory: Path) -> None:
    for segment in queue_log(directory).glob("*.segment*"):
        segment.unlink()


def remove_definitions(directory: Path) -> None:
    shutil.rmtree(directory / "definitions")


def remove_all(directory: Path) -> None:
    for name in ("definitions", "queues", "streams"):
        shutil.rmtree(directory / name, ignore_errors=True)


async def whole_follower(directory: Path) -> None:
    """The data of a follower that was in step with its leader, and was killed."""
    site = await Site.started(directory)
    await site.apply(d.Put(d.Vhost(name="v")), d.Put(d.Queue(vhost="v", name="q")), d.Put(STREAM))
    await site.publish(20)
    await site.kill()
    (directory / SECRET_FILE).write_bytes(b"5" * 64 + b"\n")
    (directory / SECRET_FILE).chmod(0o400)
    note_whole(directory)


def note_whole(directory: Path) -> None:
    """What the end of a join records."""
    file = IdentityFile(directory)
    node = Node(load(None, OPTIONS), directory)
    file.identity.note_whole(passive_node.stored_logs(node))
    node.close()
    file.identity.role, file.identity.followed_epoch, file.identity.epoch = "follower", 1, 1
    file.save()


def follower(directory: Path) -> Roles:
    return Roles(
        load(None, OPTIONS | {"replication.follow": "tcp://127.0.0.1:9"}), directory, ReplicationCommands
    )


@pytest.mark.parametrize("remove", [remove_queue, remove_segments, remove_definitions, remove_all])
async def test_a_follower_that_lost_a_log_while_it_was_down_is_not_promoted_unless_forced(
    directory: Path, remove: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Its leader is away, and another follower may have the log."""
    await whole_follower(directory)
    remove(directory)
    roles = follower(directory)
    await roles.start()
    outcome = await roles.node.replication.promote(dry_run=False, force=False, apply_until_ms=None)
    status = roles.node.replication.status()
    assert roles.is_torn, "it stands behind all others that were in sync"
    await roles.stop()
    assert not outcome["promoted"]
    assert "removed" in outcome["reason"]
    assert "removed" in status["incomplete"]
    assert IdentityFile(directory).identity.rewriting, "also after a crash"
    assert "logs_lost" in caplog.text
    if remove in (remove_queue, remove_segments):
        assert "log_lost vhost=v queue=q" in caplog.text


async def test_without_its_leader_a_follower_shows_after_a_restart_how_far_it_had_come(
    directory: Path,
) -> None:
    """An operator compares followers by this; who lacks earlier records is not to be compared."""
    await whole_follower(directory)

    async def newest_at_ms() -> int | None:
        roles = follower(directory)
        await roles.start()
        newest = max(log.last_timestamp_ms for log in roles.node.tree.logs.values())
        found: int | None = roles.node.replication.status()["leader"]["newest_at_ms"]
        await roles.stop()
        assert found in (None, newest)
        return found

    assert await newest_at_ms()
    remove_queue(directory)
    assert await newest_at_ms() is None


@pytest.mark.parametrize("has_led", [False, True])
async def test_a_follower_that_never_joined_does_not_lead_by_a_start_without_its_leader(
    directory: Path, has_led: bool
) -> None:
    """It would serve clients with nothing, beside its leader."""
    await whole_follower(directory)
    file = IdentityFile(directory)
    file.identity.followed_epoch, file.identity.led = 0, has_led
    file.save()
    roles = follower(directory)
    await roles.start()
    await roles.stop()
    alone = Roles(load(None, OPTIONS), directory, ReplicationCommands)
    if has_led:
        await alone.start()
        assert alone.role == "leader", "with its own data, after a start with --follow by mistake"
        await alone.stop()
    else:
        with pytest.raises(PreconditionFailed, match="never finished joining a leader"):
            await alone.start()


async def test_a_follower_that_lost_a_log_does_not_lead_by_a_start_without_its_leader(
    directory: Path,
) -> None:
    await whole_follower(directory)
    epoch = IdentityFile(directory).identity.epoch
    remove_queue(directory)
    roles = Roles(load(None, OPTIONS), directory, ReplicationCommands)
    with pytest.raises(PreconditionFailed, match="removed"):
        await roles.start()
    await roles.stop()
    assert IdentityFile(directory).identity.epoch == epoch


async def test_a_log_that_the_leader_lacked_as_well_stops_no_follower(directory: Path) -> None:
    await whole_follower(directory)
    remove_queue(directory)
    note_whole(directory)
    roles = follower(directory)
    await roles.start()
    assert not roles.is_torn
    outcome = await roles.node.replication.promote(dry_run=False, force=False, apply_until_ms=None)
    assert outcome["promoted"]
    assert roles.node.broker.queues["v", "q"].damage is not None
    await roles.stop()


@pytest.mark.parametrize("is_listed", [False, True], ids=["left to other nodes", "held"])
async def test_a_copy_of_a_clusters_node_lacks_the_logs_that_its_node_left_to_others_and_loses_those_it_holds(
    directory: Path, is_listed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The definitions of all nodes mark the logs of all queues, wherever they are."""
    await whole_follower(directory)
    listed = [f"queues/{queue_log(directory).name}"] if is_listed else []
    (directory / "complete_copies.json").write_text(json.dumps({"logs": listed}))
    file = IdentityFile(directory)
    file.identity.cluster = "c"
    file.save()
    remove_queue(directory)
    roles = follower(directory)
    await roles.start()
    assert roles.is_torn is is_listed
    assert ("log_lost vhost=v queue=q" in caplog.text) is is_listed
    assert (roles.node.broker.queues["v", "q"].damage is not None) is is_listed
    await roles.stop()


async def test_a_leader_records_the_logs_that_it_lacks_so_that_its_next_start_does_not_call_them_lost(
    directory: Path,
) -> None:
    await whole_follower(directory)
    remove_queue(directory)
    roles = follower(directory)
    await roles.start()
    await roles.node.replication.promote(dry_run=False, force=True, apply_until_ms=None)
    await roles.stop()
    identity = IdentityFile(directory).identity
    assert len(identity.missing_logs or ()) == 1
    assert not identity.rewriting
    node = Node(load(None, OPTIONS), directory)
    assert not identity.lost_logs(passive_node.stored_logs(node))
    node.close()


async def test_a_node_of_an_older_version_did_not_record_its_logs_and_has_lost_none(directory: Path) -> None:
    await whole_follower(directory)
    file = IdentityFile(directory)
    file.identity.missing_logs, file.identity.definitions_end = None, 0
    file.save()
    remove_queue(directory)
    roles = follower(directory)
    await roles.start()
    assert not roles.is_torn
    await roles.stop()
