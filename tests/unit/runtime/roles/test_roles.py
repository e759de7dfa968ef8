from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.cli import server
from leveret.config import load
from leveret.config.uris import NodeUri, parse_node_uri
from leveret.core.replication.election import ElectedLeader
from leveret.model.definitions import Queue
from leveret.model.errors import LeveretError, PreconditionFailed, StorageError
from leveret.runtime.coordination import elected_node as elected_module
from leveret.runtime.coordination.elected_node import ElectedNode
from leveret.runtime.roles.operations import ReplicationCommands
from leveret.runtime.roles.roles import Roles
from leveret.runtime.sockets import acceptor
from leveret.session.link_handshake import ProvenLeader
from leveret.storage.secret_file import SECRET_FILE
from leveret.testing.network.waiting import until

OPTIONS = {"listeners.tcp": "none", "stream.listeners.tcp": "none"}
ETCD = {"cluster_formation.peer_discovery_backend": "etcd", "cluster.etcd.endpoints": "http://127.0.0.1:1"}


async def test_a_flush_that_fails_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that fails half-way leaves what nobody knows: only a start from the disk mends that."""

    roles = Roles(load(None, OPTIONS), tmp_path, lambda roles: None)
    await roles.start()
    broken = iter([RuntimeError("a bug")])

    def flush() -> None:
        for error in broken:
            raise error

    monkeypatch.setattr(roles.node.engine, "flush", flush)
    roles.node.engine.touch()
    async with asyncio.timeout(60):
        await roles.failed.wait()
    monkeypatch.undo()
    await roles.stop()


async def test_a_leader_that_cannot_step_down_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves nobody any more, and would neither follow nor show its data."""
    roles = Roles(load(None, OPTIONS), tmp_path, lambda roles: None)
    await roles.start()

    async def refuses(role: str) -> None:
        raise StorageError("no room")

    monkeypatch.setattr(roles, "_show", refuses)
    roles._replaced(ProvenLeader(node_id="other", name="other", epoch=9, uri=""))
    async with asyncio.timeout(60):
        await roles.failed.wait()


@pytest.mark.parametrize(
    ("has_failed", "ends"), [(False, ["hand_over", "goodbye 10"]), (True, ["goodbye 0"])]
)
async def test_a_node_whose_disk_failed_waits_for_nobody(
    has_failed: bool, ends: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for acks of records that its disk had refused, and then for its clients; meanwhile nobody led."""
    roles = Roles(load(None, OPTIONS), tmp_path, lambda roles: None)
    await roles.start()
    done: list[str] = []

    class Cluster:
        async def hand_over(self) -> None:
            done.append("hand_over")

        async def detach(self) -> None:
            pass

        async def stop(self) -> None:
            pass

    async def stop(timeout_s: float) -> None:
        done.append(f"goodbye {timeout_s:.0f}")

    monkeypatch.setattr(roles, "_clustered", Cluster())
    monkeypatch.setattr(roles.node.amqp, "stop", stop)
    if has_failed:
        roles.node.commits.fail(StorageError("Input/output error"))
    await roles.stop()
    assert done == ends


async def test_an_elected_leader_that_cannot_step_down_ends_the_process() -> None:
    class Candidate:
        role = "leader"

        def __init__(self) -> None:
            self.failed = asyncio.Event()

        async def fence(self) -> None:
            raise StorageError("no room")

    settings = load(None, ETCD).etcd
    candidate: Any = Candidate()
    ElectedNode(settings, candidate)._deposed("its lease is over")
    async with asyncio.timeout(60):
        await candidate.failed.wait()


async def test_a_leader_that_a_node_failed_to_follow_is_followed_once_the_disk_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It followed nobody until the next change of the leader."""

    class Candidate:
        role = "follower"

        def __init__(self) -> None:
            self.followed: list[str] = []

        def standing_for(self) -> tuple[str, str, int]:
            return "me", "", 0

        async def follow_leader(self, uri: NodeUri) -> None:
            self.followed.append(str(uri))
            if len(self.followed) < 3:
                raise StorageError("no room")

    monkeypatch.setattr(elected_module, "_RETRY_S", 0.001)
    candidate: Any = Candidate()
    elected = ElectedNode(load(None, ETCD).etcd, candidate)
    monkeypatch.setattr(elected._election, "start", lambda: None)
    running = asyncio.create_task(elected.run())
    elected._election._report(ElectedLeader("other", "tcp://10.0.0.1:5679", 2))
    await until(lambda: len(candidate.followed) == 3)
    await elected.stop()
    await running


async def test_a_leader_hands_over_only_to_who_can_go_back_to_the_time(tmp_path: Path) -> None:
    """It was fenced first, and nobody led when the return failed."""
    roles = Roles(load(None, OPTIONS), tmp_path, lambda roles: None)
    await roles._show("follower")
    done: list[str] = []

    async def hold(until_ms: int) -> None:
        done.append("hold")
        raise PreconditionFailed("it is over")

    async def take_over(epoch: int) -> bool:
        done.append("take over")
        return True

    inbound: Any = SimpleNamespace(take_over=take_over, state="delayed")
    following: Any = SimpleNamespace(uri="", inbound=inbound, delaying=SimpleNamespace(hold=hold))
    roles.following = following
    with pytest.raises(PreconditionFailed, match="it is over"):
        await roles.take_over(1)
    assert done == ["hold"]
    assert roles.following is following
    roles.following = None
    await roles.stop()


async def follower_at(directory: Path, port: int) -> Roles:
    (directory / SECRET_FILE).write_bytes(b"5" * 64 + b"\n")
    (directory / SECRET_FILE).chmod(0o400)
    settings = OPTIONS | {
        "replication.follow": "tcp://127.0.0.1:9",
        "stream.listeners.tcp.default": str(port),
    }
    del settings["stream.listeners.tcp"]
    roles = Roles(load(None, settings), directory, ReplicationCommands)
    await roles.start()
    return roles


async def test_a_follower_at_whose_address_another_program_listens_is_not_promoted(tmp_path: Path) -> None:
    """Its leader was fenced before, and nobody served."""
    with acceptor.listen("127.0.0.1", 0) as other:
        roles = await follower_at(tmp_path, other.getsockname()[1])
        following = roles.following
        for dry_run, force in ((True, False), (False, True)):
            outcome = await roles.node.replication.promote(dry_run=dry_run, force=force)
            assert "Address already in use" in outcome["reason"]
        assert not outcome["promoted"]
        assert roles.following is following
    unforced = await roles.node.replication.promote(dry_run=True, force=False)
    assert "does not have all data" in unforced["reason"]
    assert (await roles.node.replication.promote(dry_run=True, force=True))["reason"] is None
    assert (await roles.node.replication.promote(dry_run=False, force=True))["promoted"]
    await roles.stop()


async def test_a_node_whose_address_is_taken_while_it_begins_to_lead_ends_with_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that the disk had failed, with status 74."""
    with acceptor.listen("127.0.0.1", 0) as other:
        roles = await follower_at(tmp_path, other.getsockname()[1])
        monkeypatch.setattr(roles, "occupied_address", lambda: "")
        with pytest.raises(LeveretError, match="cannot listen") as raised:
            await roles.node.replication.promote(dry_run=False, force=True)
    assert roles.failed.is_set()
    assert roles.failure is raised.value
    assert server._why_stopping(roles) == "cannot_lead"
    assert server._describe(raised.value) == (69, str(raised.value))
    await roles.stop()


async def test_a_node_at_whose_address_another_program_listens_does_not_stand() -> None:
    """It would end as soon as it had won, start again, and might win again."""
    candidate: Any = SimpleNamespace(occupied_address=lambda: "cannot listen")
    elected = ElectedNode(load(None, ETCD).etcd, candidate)
    assert await elected.campaign(force=True) == "cannot listen"
    assert elected.status()["not_elected"] == "cannot listen"
    await elected.stop()


async def test_a_node_follows_after_an_attempt_that_the_disk_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = Roles(load(None, OPTIONS | ETCD), tmp_path, lambda roles: None)
    await roles._show("follower")
    uri = parse_node_uri("tcp://127.0.0.1:1")

    def save() -> None:
        raise StorageError("no room")

    monkeypatch.setattr(roles._identity, "save", save)
    with pytest.raises(StorageError):
        await roles.follow_leader(uri)
    monkeypatch.undo()
    await roles.follow_leader(uri)
    assert roles.following is not None
    await roles.stop()


@pytest.mark.parametrize("is_in_cluster", [False, True])
async def test_a_node_is_shown_once_it_has_its_users_and_queues(tmp_path: Path, is_in_cluster: bool) -> None:
    """It answered right credentials with 401, and lists of queues without their messages, while it recovered."""
    roles = Roles(load(None, OPTIONS), tmp_path, lambda roles: None)
    await roles.start()
    roles.node.broker.declare_queue(Queue(name="q", vhost="/"))
    await roles.node.commit()
    await roles.stop()

    shown: list[tuple[int, int]] = []
    roles = Roles(load(None, OPTIONS), tmp_path, lambda roles: None)
    roles.on_node = lambda node: shown.append(
        (len(node.broker.definitions.by_kind["users"]), len(node.broker.queues))
    )
    if is_in_cluster:

        async def begin() -> None:
            assert shown, "other nodes ask from here on"

        coordinator: Any = SimpleNamespace(begin=begin)
        await roles.serve_with(lambda node: coordinator)
    else:
        await roles.start()
    assert shown == [(1, 1)]
    await roles.stop()
