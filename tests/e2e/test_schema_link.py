"""The schema link over real sockets: two nodes in memory, each with its broker, one following the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from leveret.core.broker.access import check_password, permission_of
from leveret.core.schema.delta import SCHEMA_VHOST
from leveret.model.definitions import Binding, Delete, Exchange, Permission, Put, Queue, User, Vhost
from leveret.model.errors import AccessRefused, InvalidCommand, NotAllowed
from leveret.testing.network.waiting import until
from tests.e2e.schema_pair import SOME, Node, a_refused_port, endpoints, garbage, listening, pair, silent

pytestmark = pytest.mark.uvloop

# -- following ------------------------------------------------------------------------------------


async def test_a_downstream_follows_its_upstream_through_every_kind_of_change(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        link.upstream.put(*SOME)
        link.downstream.put(Vhost(name="old"), Queue(vhost="old", name="q"), User(name="x", password_hash=""))
        await link.follow()
        await until(lambda: link.status["state"] == "syncing", "a first sync")
        assert link.downstream.schema() == link.upstream.schema()

        for change in (
            Delete("queues", ("orders", "eu")),
            Put(Queue(vhost="orders", name="eu")),
            Put(Binding(vhost="orders", source="in", destination="eu", routing_key="#")),
            Put(User(name="app", password_hash="other")),
            Delete("policies", ("orders", "dr")),
        ):
            link.upstream.broker.apply(change)
            await link.synced()
            assert link.downstream.schema() == link.upstream.schema()

        assert link.status["conflicts"] == []
        assert link.status["refused"] == []
        assert link.downstream.commits >= 5


async def test_unchanged_kinds_are_not_sent_again_although_locals_keep_the_two_sides_different(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path, locals_={"queues": "^mine$"}) as link:
        link.upstream.put(Queue(vhost="/", name="mine"), Queue(vhost="/", name="q"))
        await link.follow()
        await until(lambda: link.status["syncs"] == 1, "a first sync")
        await link.synced()
        await link.synced()
        assert link.status["syncs_unchanged"] == 2

        link.downstream.broker.apply(Delete("queues", ("/", "q")))
        await link.synced()
        assert ("/", "q") in link.downstream.broker.queues


async def test_a_change_that_the_downstream_refuses_is_named_and_stops_no_other(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        # A newer upstream knows a type of exchange that this node does not.
        odd = Exchange(vhost="/", name="odd", type="x-consistent-hash")
        link.upstream.broker.definitions.apply(Put(odd))
        link.upstream.put(Queue(vhost="/", name="q"))
        await link.follow()
        await until(lambda: link.status["syncs"] == 1, "a first sync")
        refused = link.status["last_error"]
        assert isinstance(refused, str)
        assert refused.startswith("exchanges //odd: ")
        assert "'x-consistent-hash'" in refused
        assert link.status["refused"] == [refused]
        assert ("/", "q") in link.downstream.broker.queues


async def test_syncs_repeat_at_the_interval(tmp_path: Path) -> None:
    async with pair(tmp_path, minimum_sync_interval_ms=100) as link:
        await link.follow()
        await until(lambda: link.status["syncs"] == 1, "a first sync")
        link.upstream.put(Queue(vhost="/", name="later"))
        await until(lambda: ("/", "later") in link.downstream.broker.queues, "a sync of its own accord")
        status = link.status
        for stamp in ("last_connection_completion_stamp", "last_sync_request_stamp", "last_sync_duration"):
            assert isinstance(status[stamp], int)
        assert link.upstream.schema_sync.status()["requests_served"] >= 2


# -- when it does not go well ---------------------------------------------------------------------


async def test_a_sync_that_takes_longer_than_the_interval_is_followed_after_as_long_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, minimum_sync_interval_ms=100) as link:
        clock = asyncio.get_running_loop().time
        asked_s: list[float] = []
        ended_s: list[float] = []
        serve, commit = link.upstream.schema_request, link.downstream.commit

        def request(user: str, body: bytes) -> bytes:
            asked_s.append(clock())
            return serve(user, body)

        async def slow_commit() -> None:
            await asyncio.sleep(0.5)
            await commit()
            ended_s.append(clock())

        monkeypatch.setattr(link.upstream, "schema_request", request)
        monkeypatch.setattr(link.downstream, "commit", slow_commit)
        link.upstream.put(Queue(vhost="/", name="q"))
        await link.follow()
        await until(lambda: link.status["syncs"] == 2, "a second sync")
        # Following ends with a commit, too, and so does a sync without changes.
        assert asked_s[-1] - max(at for at in ended_s if at < asked_s[-1]) >= 0.5


async def test_a_wrong_password_is_reported_and_the_right_one_taken_up(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        await link.follow(endpoints(link.port, password="wrong-guess"))
        status = await link.failed("refuses user 'replicator' or its password")
        assert status["state"] == "recover"
        assert "wrong-guess" not in str(status)
        await link.downstream.schema_sync.set_endpoints(endpoints(link.port))
        await until(lambda: link.status["state"] == "syncing", "a sync with the right password")
        assert link.status["last_error"] is None


async def test_a_user_without_permissions_is_reported(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        link.upstream.broker.apply(Delete("permissions", (SCHEMA_VHOST, "replicator")))
        await link.follow()
        await link.failed(f"access to vhost '{SCHEMA_VHOST}' refused for user 'replicator'")
        link.upstream.put(
            Permission(user="replicator", vhost=SCHEMA_VHOST, configure="", write="", read=".*")
        )
        await link.failed("access to 'schema_definition_sync' in vhost")


async def test_the_first_endpoint_that_answers_is_used(tmp_path: Path) -> None:
    async with pair(tmp_path) as link, listening(silent) as mute, listening(garbage) as noise:
        await link.follow(endpoints(await a_refused_port(), mute, noise, link.port))
        await until(lambda: link.status["state"] == "syncing", "a sync with the fourth endpoint")
        assert link.upstream.sessions == 1


async def test_endpoints_of_which_none_answers_are_named_each_with_its_reason(tmp_path: Path) -> None:
    async with pair(tmp_path) as link, listening(silent) as mute, listening(garbage) as noise:
        refused = await a_refused_port()
        await link.follow(endpoints(refused, mute, noise))
        status = await link.failed(f"127.0.0.1:{mute} does not answer within 0.4 s")
        assert status["state"] == "connecting"
        reasons = str(status["last_error"]).split("; ")
        assert [reason.split()[0].rstrip(":") for reason in reasons] == [
            f"127.0.0.1:{port}" for port in (refused, mute, noise)
        ]


async def test_tls_that_only_one_side_speaks_is_told(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with pair(tmp_path) as link, listening(hang_up) as shut:
        await link.follow(endpoints(shut))
        await link.failed("if it speaks TLS there, the endpoint begins with amqps://")
        await link.follow(endpoints(link.port).replace("127.0.0.1", "amqps://127.0.0.1"))
        await link.failed("TLS: the other side speaks no TLS there")


async def test_an_upstream_that_is_disabled_is_asked_again_until_it_serves(tmp_path: Path) -> None:
    async with pair(tmp_path, minimum_sync_interval_ms=100) as link:
        await link.upstream.schema_sync.disable()
        await link.follow()
        status = await link.failed(f"127.0.0.1:{link.port}: schema replication is disabled on this node")
        assert status["state"] == "recover"
        await link.upstream.schema_sync.enable()
        await until(lambda: link.status["state"] == "syncing", "a sync once it is enabled")
        assert link.upstream.sessions == 1


async def test_an_upstream_that_serves_again_says_so(tmp_path: Path) -> None:
    async with pair(tmp_path, minimum_sync_interval_ms=3_600_000) as link:
        link.upstream.notices_every_s = 0.02
        await link.upstream.schema_sync.disable()
        await link.follow()
        await link.failed("schema replication is disabled on this node")
        await link.upstream.schema_sync.enable()
        await until(lambda: link.status["state"] == "syncing", "a sync although the next one is far off")


# -- modes and commands ---------------------------------------------------------------------------


async def test_a_promoted_downstream_serves_and_stays_promoted(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        link.upstream.put(*SOME)
        await link.follow()
        await until(lambda: link.status["state"] == "syncing", "a first sync")
        promoted = link.downstream.schema_sync

        await promoted.disable()
        assert link.status["state"] == "disconnected"
        await promoted.add_user("replicator", "new")
        await promoted.set_mode("upstream")
        await promoted.enable()

        assert (promoted.status()["operating_mode"], promoted.status()["state"]) == ("upstream", "running")
        follower = Node(tmp_path, "other", operating_mode="downstream")
        async with listening(link.downstream.serve) as port:
            await follower.schema_sync.set_endpoints(endpoints(port, password="new"))
            await follower.schema_sync.start()
            await until(
                lambda: follower.schema_sync.status()["state"] == "syncing", "a sync from the promoted"
            )
            assert follower.schema() == link.downstream.schema()
            await follower.schema_sync.stop()

        again = Node(tmp_path, "down", operating_mode="downstream")
        assert again.schema_sync.status()["operating_mode"] == "upstream"


async def test_a_disabled_downstream_stays_disabled_over_a_restart(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        await link.downstream.schema_sync.disable()
        await link.follow()
        assert link.status["state"] == "disconnected"
        again = Node(tmp_path, "down", operating_mode="downstream")
        await again.schema_sync.start()
        assert again.schema_sync.status()["enabled"] is False
        await link.downstream.schema_sync.enable()
        await until(lambda: link.status["state"] == "syncing", "a sync once enabled")


async def test_a_restart_takes_up_new_endpoints(tmp_path: Path) -> None:
    async with pair(tmp_path) as link, listening(link.upstream.serve) as other:
        await link.follow()
        await until(lambda: link.status["state"] == "syncing", "a first sync")
        await link.downstream.schema_sync.set_endpoints(endpoints(other))
        await link.synced()
        assert link.upstream.sessions == 1
        await link.downstream.schema_sync.restart()
        await until(lambda: link.upstream.sessions == 2, "a second connection")
        assert link.status["upstream_endpoints"] == [f"127.0.0.1:{other}"]


async def test_a_downstream_without_endpoints_says_what_to_do(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        await link.downstream.schema_sync.start()
        status = await link.failed("use set_schema_replication_upstream_endpoints")
        assert status["state"] == "disconnected"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "malformed|truncated"),
        ("[]", "Expected `object`"),
        ('{"username":"u","password":"p"}', "required field `endpoints`"),
        ('{"endpoints":["h:1"],"password":"p"}', "required field `username`"),
        ('{"endpoints":["h:1"],"username":"u"}', "required field `password`"),
        ('{"endpoints":"h:1","username":"u","password":"p"}', r"\$\.endpoints"),
        ('{"endpoints":["h:1"],"username":"u","password":7}', r"\$\.password"),
        ('{"endpoints":[],"username":"u","password":"p"}', "`endpoints` is empty"),
        ('{"endpoints":["h:1"],"username":"","password":"p"}', "`username` is empty"),
        (
            '{"endpoints":["h:1","h"],"username":"u","password":"p"}',
            r"`endpoints\[1\]`: 'h' is not host:port",
        ),
        ('{"endpoints":["h:0"],"username":"u","password":"p"}', r"endpoints\[0\]"),
        ('{"endpoints":["h:65536"],"username":"u","password":"p"}', r"endpoints\[0\]"),
        ('{"endpoints":["ftp://h:1"],"username":"u","password":"p"}', r"endpoints\[0\]"),
        ('{"endpoints":["amqp://h"],"username":"u","password":"p"}', r"endpoints\[0\]"),
        ('{"endpoints":["amqp://h:1/v"],"username":"u","password":"p"}', r"endpoints\[0\]"),
        ('{"endpoints":["https://u:secret@h:1"],"username":"u","password":"p"}', r"endpoints\[0\]"),
        ('{"endpoints":["::1:5672"],"username":"u","password":"p"}', r"endpoints\[0\]"),
    ],
)
async def test_endpoints_that_cannot_be_used_name_the_field_and_change_nothing(
    tmp_path: Path, text: str, named: str
) -> None:
    node = Node(tmp_path, "down", operating_mode="downstream")
    with pytest.raises(InvalidCommand, match=named):
        await node.schema_sync.set_endpoints(text)
    assert node.broker.definitions.by_kind["global_parameters"] == {}


async def test_requests_are_served_by_an_enabled_upstream_to_its_schema_users_only(tmp_path: Path) -> None:
    node = Node(tmp_path, "up", operating_mode="upstream")
    sync = node.schema_sync
    with pytest.raises(AccessRefused, match="refused for user 'nobody'"):
        sync.serve_request("nobody", b"")
    await sync.add_user("replicator", "secret")
    with pytest.raises(InvalidCommand, match="not a message of the schema sync"):
        sync.serve_request("replicator", b"garbage")
    await sync.set_mode("none")
    with pytest.raises(NotAllowed, match="mode is 'none'"):
        sync.serve_request("replicator", b"")
    with pytest.raises(InvalidCommand, match="'sideways' is none of upstream, downstream, none"):
        await sync.set_mode("sideways")
    with pytest.raises(InvalidCommand, match="needs a name and a password"):
        await sync.add_user("replicator", "")


async def test_a_schema_user_that_is_there_keeps_its_tags_and_gets_the_password(tmp_path: Path) -> None:
    node = Node(tmp_path, "up", operating_mode="upstream")
    node.put(User(name="replicator", password_hash="", tags=("monitoring",)))
    await node.schema_sync.add_user("replicator", "secret")
    user = node.broker.definitions.by_kind["users"][("replicator",)]
    assert isinstance(user, User)
    assert user.tags == ("monitoring",)
    assert check_password(user, "secret")
    assert permission_of(node.broker.definitions, "replicator", SCHEMA_VHOST) is not None
