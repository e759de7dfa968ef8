"""Following a schema over real sockets: notices, force, what would change, history, several downstreams, TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from leveret.config.sections.tls import TlsOptions
from leveret.core.schema import digests as schema_digests
from leveret.core.schema.decisions import SchemaDecided
from leveret.core.schema.delta import SCHEMA_VHOST, Key, canonical
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.definitions import (
    AnyEntity,
    Binding,
    Change,
    Delete,
    Exchange,
    GlobalParameter,
    Queue,
    User,
    Vhost,
)
from leveret.model.errors import (
    AuthenticationFailed,
    InvalidCommand,
    LeveretError,
    NotAllowed,
    PreconditionFailed,
    ResourceLocked,
)
from leveret.runtime.schema_sync import apply as schema_apply
from leveret.runtime.schema_sync import schema_sync
from leveret.runtime.schema_sync.apply import CHANGES_KEPT_MAX, HISTORY_MAX
from leveret.session.amqp10.server import Amqp10Session
from leveret.storage.state_file import StateFile
from leveret.testing.network.waiting import until
from leveret.testing.servers.certificates import CertificateAuthority, available
from leveret.wire.schema_sync import SyncRequest, decode_reply, encode_request
from tests.e2e.schema_pair import SOME, TIMING, Node, endpoints, listening, pair

pytestmark = pytest.mark.uvloop

NEVER_MS = 3_600_000


# -- when the upstream changes --------------------------------------------------------------------


async def test_a_change_arrives_although_the_next_sync_is_far_off(tmp_path: Path) -> None:
    async with pair(tmp_path, minimum_sync_interval_ms=NEVER_MS) as link:
        link.upstream.notices_every_s = 0.02
        await link.follow()
        await until(lambda: link.status["syncs"], "a first sync")
        for number in range(3):
            link.upstream.put(Queue(vhost="/", name=f"q{number}"))
            key = ("/", f"q{number}")
            await until(lambda key=key: key in link.downstream.broker.queues, "a change without asking")  # type: ignore[misc]
        assert link.status["notices"] != 0
        assert link.status["sync_interval_ms"] == NEVER_MS


async def test_what_was_told_is_noted_as_told_although_an_upstream_looks_at_its_schema_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_sync, "LOOK_SHARE_MAX", 1e-9)  # as if it had a million entities
    node, briefly = Node(tmp_path, "up", operating_mode="upstream"), Queue(vhost="/", name="briefly")
    await node.schema_sync.add_user("replicator", "secret")
    before = node.schema_state()
    node.put(briefly)
    assert node.schema_state() == before
    reply = decode_reply(node.schema_request("replicator", encode_request(SyncRequest("down"))))
    served_state = node.schema_state()
    node.broker.apply(Delete("queues", briefly.key))
    monkeypatch.setattr(node.schema_sync, "_look_again_at_s", 0.0)
    assert (served_state, node.schema_state()) == (reply.state, before), "its deletion is worth a notice"


async def test_what_does_not_travel_is_no_reason_for_a_notice(tmp_path: Path) -> None:
    async with pair(tmp_path, minimum_sync_interval_ms=NEVER_MS) as link:
        link.upstream.notices_every_s = 0.02
        await link.follow()
        await until(lambda: link.status["syncs"], "a first sync")
        link.upstream.put(Queue(vhost="/", name="passing", durable=False), Vhost(name=SCHEMA_VHOST))
        link.upstream.put(GlobalParameter(name="internal_cluster_id", value="x"))
        await asyncio.sleep(0.1)
        link.upstream.put(Queue(vhost="/", name="staying"))
        await until(lambda: ("/", "staying") in link.downstream.broker.queues, "what does travel")
        assert link.status["notices"] == 1


async def test_several_downstreams_follow_one_upstream_each_at_its_own_pace(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        other = Node(tmp_path, "other", operating_mode="downstream")
        link.upstream.put(*SOME)
        await link.follow()
        await until(lambda: link.status["syncs"], "the first downstream")
        link.upstream.put(Queue(vhost="/", name="later"))
        await other.schema_sync.set_endpoints(endpoints(link.port))
        await other.schema_sync.start()
        try:
            await until(lambda: other.schema() == link.upstream.schema(), "the second downstream")
            assert ("/", "later") not in link.downstream.broker.queues
            await link.synced()
            assert link.downstream.schema() == link.upstream.schema()
            rows = link.upstream.schema_sync.status()["downstreams"]
            assert {row["cluster"] for row in rows} == {"cluster.down", "cluster.other"}
            assert all(row["user"] == "replicator" and row["requests"] >= 2 for row in rows)
            assert {row["in_sync"] for row in rows} == {True}, "each was told all that it lacked"
        finally:
            await other.schema_sync.stop()


async def test_no_two_queues_get_the_same_epoch_although_both_sides_count_alike(tmp_path: Path) -> None:
    async with pair(tmp_path, locals_={"queues": "^mine"}) as link:
        link.downstream.put(*(Queue(vhost="/", name=f"mine{number}") for number in range(3)))
        link.upstream.put(*(Queue(vhost="/", name=f"q{number}") for number in range(3)))
        await link.follow()
        await until(lambda: link.status["syncs"], "a first sync")
        link.downstream.broker.apply(Delete("queues", ("/", "q1")))
        await link.synced()
        held = link.downstream.broker.queues
        assert ("/", "q1") in held
        assert sorted(queue.epoch for queue in held.values()) == [1, 2, 3, 4, 6, 7]


async def test_what_did_not_change_is_not_digested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digested: list[Key] = []
    entry_of = schema_digests._entry

    def counting(key: Key, entity: AnyEntity) -> schema_digests.DigestEntry:
        digested.append(key)
        return entry_of(key, entity)

    monkeypatch.setattr(schema_digests, "_entry", counting)
    async with pair(tmp_path) as link:
        link.upstream.put(*(Queue(vhost="/", name=f"q{number}") for number in range(50)))
        await link.follow()
        await until(lambda: link.status["syncs"], "a first sync")
        await link.synced()
        assert len(digested) >= 100
        digested.clear()
        await link.synced()
        assert digested == []
        link.upstream.put(Queue(vhost="/", name="new"))
        await link.synced()
        assert set(digested) == {("/", "new")}


# -- conflicts ------------------------------------------------------------------------------------


def _hold_messages(node: Node, name: str) -> None:
    node.broker.queue("/", name).backlog.next_offset = 3


async def test_a_queue_with_messages_is_replaced_when_the_operator_says_so_and_not_before(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as link:
        names = [f"q{number}" for number in range(25)]
        link.upstream.put(*(Queue(vhost="/", name=name, arguments={"x": 1}) for name in names))
        link.downstream.put(*(Queue(vhost="/", name=name) for name in names))
        for name in names:
            _hold_messages(link.downstream, name)
        await link.follow()
        await until(lambda: link.status["syncs"], "a first sync")
        done = await link.downstream.schema_sync.sync(force=False)
        assert (done["puts"], len(done["conflicts"])) == (0, 25)
        status = link.downstream.schema_sync.status()
        assert (status["conflict_count"], len(status["conflicts"])) == (25, 20)

        done = await link.downstream.schema_sync.sync(force=True)
        assert (done["puts"], done["deletes"], done["conflicts"]) == (25, 25, [])
        assert link.downstream.schema_sync.status()["conflict_count"] == 0
        assert link.downstream.schema() == link.upstream.schema()

        link.upstream.broker.apply(Delete("queues", ("/", "q0")))
        link.upstream.put(Queue(vhost="/", name="q0", arguments={"x": 2}))
        _hold_messages(link.downstream, "q0")
        await link.synced()
        status = link.downstream.schema_sync.status()
        assert status["conflict_count"] == 1, "once forced is not for ever forced"


async def test_a_sync_that_cannot_be_had_says_why(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        with pytest.raises(NotAllowed, match="follows no upstream now"):
            await link.downstream.schema_sync.sync(force=True)
        await link.downstream.schema_sync.start()
        await link.failed("use set_schema_replication_upstream_endpoints")
        with pytest.raises(ResourceLocked, match="no link to an upstream: no upstream endpoints"):
            await link.downstream.schema_sync.sync(force=True)
        await link.follow()
        await until(lambda: link.status["syncs"], "a first sync")
        await link.upstream.schema_sync.disable()
        with pytest.raises(NotAllowed, match="disabled on this node"):
            await link.downstream.schema_sync.sync(force=False)


async def test_a_force_that_failed_or_that_nobody_waits_for_is_no_force_any_more(tmp_path: Path) -> None:
    deaf = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Amqp10Session(link.upstream, from_loopback=True)
        while octets := await reader.read(65_536):
            reply = session.receive(octets, 0)
            if not deaf:
                writer.write(reply)

    timing = TIMING._replace(reply_timeout_s=0.5)
    async with pair(tmp_path, timing, minimum_sync_interval_ms=NEVER_MS) as link, listening(serve) as port:
        link.upstream.put(Queue(vhost="/", name="q", arguments={"x": 1}))
        link.downstream.put(Queue(vhost="/", name="q"))
        _hold_messages(link.downstream, "q")
        await link.follow(endpoints(port))
        await until(lambda: link.status["syncs"] == 1, "a first sync")
        sync = link.downstream.schema_sync

        deaf = True
        sync.sync_now()
        await asyncio.sleep(0.1)
        with pytest.raises(PreconditionFailed, match="did not reply within"):
            await sync.sync(force=True)
        deaf = False
        await until(lambda: link.status["syncs"] == 2, "an ordinary sync")
        assert link.downstream.broker.queue("/", "q").message_count == 3

        gone = asyncio.ensure_future(sync.sync(force=True))
        await asyncio.sleep(0)
        gone.cancel()
        done = await sync.sync(force=False)
        assert (done["puts"], done["deletes"], len(done["conflicts"])) == (0, 0, 1)
        assert link.downstream.broker.queue("/", "q").message_count == 3


# -- a sync that is stopped -----------------------------------------------------------------------


async def test_a_delta_that_is_being_applied_is_applied_whole_when_replication_is_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_apply, "CHANGES_PER_SLICE", 10)
    async with pair(tmp_path, locals_={"queues": "^mine$"}) as link:
        up, down = link.upstream, link.downstream
        names = [f"q{number}" for number in range(200)]
        to_mine = Binding(vhost="/", source="x", destination="mine")
        down.put(Exchange(vhost="/", name="x", type="direct"), Queue(vhost="/", name="mine"), to_mine)
        down.put(*(Queue(vhost="/", name=name) for name in names))
        up.put(Exchange(vhost="/", name="x", type="topic"))
        up.put(*(Queue(vhost="/", name=name, arguments={"x": 1}) for name in names))
        begun, make = asyncio.Event(), down.broker.apply

        def noticing(change: Change) -> None:
            make(change)
            if change == Delete("exchanges", ("/", "x")):
                begun.set()

        monkeypatch.setattr(down.broker, "apply", noticing)
        await link.follow()
        await begun.wait()
        assert not all(down.broker.queues["/", name].definition.arguments for name in names)
        commits = down.commits
        await down.schema_sync.disable()
        mine = canonical(Queue(vhost="/", name="mine")), canonical(to_mine)
        schema = down.schema()
        schema["queues"].remove(mine[0])
        schema["bindings"].remove(mine[1])
        assert schema == up.schema()
        assert down.commits == commits + 1, "what was applied is durable"
        assert down.schema_sync.history()[0]["deletes"] == 201
        assert link.status["state"] == "disconnected"


async def test_nobody_waits_for_a_sync_of_a_downstream_that_has_ended(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        await link.follow()
        await until(lambda: link.status["state"] == "syncing", "a first sync")
        sync = link.downstream.schema_sync
        stopping, asked = asyncio.ensure_future(sync.stop()), []
        while not stopping.done():
            asked.append(asyncio.ensure_future(sync.sync(force=False)))
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            results = await asyncio.gather(*asked, return_exceptions=True)
        assert {isinstance(each, dict | LeveretError) for each in results} == {True}


async def test_a_disk_that_never_answers_does_not_keep_a_node_from_stopping(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        committing = asyncio.Event()

        async def never() -> None:
            committing.set()
            await asyncio.Event().wait()

        link.upstream.put(Queue(vhost="/", name="q"))
        await link.downstream.schema_sync.set_endpoints(endpoints(link.port))
        link.downstream.commit = never  # type: ignore[method-assign]  # a fault
        await link.downstream.schema_sync.start()
        await committing.wait()
        disabling = asyncio.ensure_future(link.downstream.schema_sync.disable())
        await asyncio.sleep(0.1)
        assert not disabling.done()
        async with asyncio.timeout(60):
            await link.downstream.schema_sync.stop(at_once=True)
            await disabling
        assert ("/", "q") in link.downstream.broker.queues


# -- one of several nodes ---------------------------------------------------------------------------


@dataclass
class Site:
    """What the nodes of a cluster agree on (schema_sync.decisions)."""

    follower: str
    decided: SchemaDecided = field(default_factory=SchemaDecided)

    async def decide(self, change: Callable[[SchemaDecided], SchemaDecided]) -> None:
        self.decided = change(self.decided)


async def test_who_is_not_to_follow_any_more_when_it_may_change_definitions_changes_nothing(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as link:
        sync, site = link.downstream.schema_sync, Site(follower="down")
        sync.deciding = site
        link.upstream.put(*SOME)
        before, entered = link.downstream.schema(), asyncio.Event()

        @asynccontextmanager
        async def changing() -> AsyncIterator[None]:
            """Another node had the pen until now, and was told to follow, or that nobody is to."""
            entered.set()
            site.follower = "another"
            yield

        link.downstream.changing = changing  # type: ignore[method-assign,assignment]  # a cluster's
        await sync.set_endpoints(endpoints(link.port))
        before["global_parameters"] = link.downstream.schema()["global_parameters"]
        await sync.start()
        await entered.wait()
        await link.failed("is not the one that follows")
        assert link.downstream.schema() == before
        sync.obey_decisions()
        await until(lambda: sync.status()["state"] == "disconnected", "the end of the link")
        assert (sync.follower, sync.status()["follower"]) == ("another", "another")

        del link.downstream.changing
        site.follower = "down"
        sync.obey_decisions()
        await until(lambda: link.downstream.schema() == link.upstream.schema(), "the schema")
        site.decided = SchemaDecided(operating_mode=OperatingMode.UPSTREAM)
        sync.obey_decisions()
        await until(lambda: sync.status()["state"] == "running", "the other side")


async def test_what_other_nodes_changed_while_it_waited_is_seen(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        down = link.downstream
        link.upstream.put(*SOME)

        @asynccontextmanager
        async def changing() -> AsyncIterator[None]:
            down.put(Vhost(name="orders"), Queue(vhost="orders", name="eu", arguments={"x-max-length": 1}))
            yield

        down.changing = changing  # type: ignore[method-assign,assignment]  # a cluster's
        await link.follow()
        await until(lambda: link.status["syncs"], "a first sync")
        assert down.schema() == link.upstream.schema()
        assert (link.status["conflict_count"], link.status["refused_count"]) == (0, 0)


async def test_what_was_forced_and_given_up_while_it_waited_is_not_forced_later(tmp_path: Path) -> None:
    async with pair(tmp_path, minimum_sync_interval_ms=NEVER_MS) as link:
        down, waits, goes_on = link.downstream, asyncio.Event(), asyncio.Event()
        await link.follow()
        await until(lambda: link.status["syncs"], "a first sync")
        down.put(Queue(vhost="/", name="q"))
        _hold_messages(down, "q")
        link.upstream.put(Queue(vhost="/", name="q", arguments={"x": 1}))

        @asynccontextmanager
        async def changing() -> AsyncIterator[None]:
            waits.set()
            await goes_on.wait()
            yield

        down.changing = changing  # type: ignore[method-assign,assignment]  # a cluster's
        forcing = asyncio.ensure_future(down.schema_sync.sync(force=True))
        await waits.wait()
        forcing.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        await until(lambda: link.status["conflict_count"], "a sync that spares what holds messages")
        assert down.broker.queue("/", "q").message_count == 3


async def test_a_command_that_ends_while_the_node_closes_follows_nobody(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        await link.follow()
        await until(lambda: link.status["syncs"], "a first sync")
        await link.downstream.schema_sync.close()
        await link.downstream.schema_sync.restart()
        await link.downstream.schema_sync.set_mode("downstream")
        assert link.status["state"] == "disconnected"


# -- what would change, what was changed ----------------------------------------------------------


async def test_what_would_change_is_told_and_nothing_is_changed(tmp_path: Path) -> None:
    async with pair(tmp_path, locals_={"queues": "^mine$"}) as link:
        link.upstream.put(
            *SOME,
            Queue(vhost="/", name="other", arguments={"x": 1}),
            Queue(vhost="/", name="full", arguments={"x": 1}),
        )
        link.downstream.put(
            Queue(vhost="/", name="mine"),
            Queue(vhost="/", name="other"),
            Queue(vhost="/", name="full"),
            Queue(vhost="/", name="stray"),
            User(name="app", password_hash="own-hash", tags=("monitoring",)),
        )
        _hold_messages(link.downstream, "full")
        with pytest.raises(PreconditionFailed, match="no upstream endpoints"):
            await link.downstream.schema_sync.diff()
        await link.downstream.schema_sync.set_endpoints(endpoints(link.port))
        before = link.downstream.schema()
        rows = await link.downstream.schema_sync.diff()

        found = {(row["kind"], row["entity"]): row for row in rows}
        assert {key: row["action"] for key, row in found.items() if key[1].startswith("/")} == {
            ("queues", "//other"): "replace",
            ("queues", "//full"): "keep",
            ("queues", "//stray"): "delete",
        }
        assert found["queues", "//other"]["fields"] == ["arguments"]
        assert found["users", "app"]["action"] == "change"
        assert found["users", "app"]["fields"] == ["password_hash"]
        assert found["vhosts", "orders"]["action"] == "create"
        assert found["users", "replicator"]["upstream"]["password_hash"] == "..."
        assert b"own-hash" not in msgspec.json.encode(rows)
        assert link.downstream.schema() == before

        await link.follow()
        await until(lambda: link.status["syncs"], "a first sync")
        assert [row["action"] for row in await link.downstream.schema_sync.diff()] == ["keep"]


async def test_an_upstream_that_cannot_be_asked_what_would_change_is_told_with_the_reason(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as link:
        await link.downstream.schema_sync.set_endpoints(endpoints(1))
        with pytest.raises(PreconditionFailed, match=r"127\.0\.0\.1:1"):
            await link.downstream.schema_sync.diff()
        await link.downstream.schema_sync.set_endpoints(endpoints(link.port, password="wrong"))
        with pytest.raises(AuthenticationFailed):
            await link.downstream.schema_sync.diff()


async def test_the_standby_is_told_why_nothing_came(tmp_path: Path) -> None:
    """It transfers vhosts that come with the definitions, and without these there are none."""
    async with pair(tmp_path) as link:
        sync = link.downstream.schema_sync
        await sync.set_endpoints(endpoints(link.port, password="wrong"))
        await sync.start()
        await until(lambda: "refuses user" in sync.why_nothing_came, "the reason")
        await sync.set_endpoints(endpoints(link.port))
        await until(lambda: not sync.why_nothing_came, "a first sync")


async def test_what_was_changed_is_kept_newest_first_over_a_restart_and_not_without_end(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as link:
        link.upstream.put(*(Queue(vhost="/", name=f"q{number}") for number in range(CHANGES_KEPT_MAX + 9)))
        await link.follow()
        await until(lambda: link.status["syncs"], "a first sync")
        for number in range(HISTORY_MAX):
            link.upstream.put(Vhost(name=f"v{number}"))
            await link.downstream.schema_sync.sync(force=False)
        again = Node(tmp_path, "down", operating_mode="downstream")
        rows = again.schema_sync.history()
        assert rows == link.downstream.schema_sync.history()
        assert len(rows) == HISTORY_MAX
        newest = rows[0]
        assert newest["changes"] == [f"put vhosts v{HISTORY_MAX - 1}"]
        assert (newest["puts"], newest["deletes"], newest["refused"]) == (1, 0, 0)
        assert newest["upstream"] == f"127.0.0.1:{link.port}"
        assert newest["upstream_cluster"] == "cluster.up"
        assert newest["received_bytes"] > 0
        await link.synced()
        assert link.downstream.schema_sync.history() == rows, "a sync without a change is no entry"


async def test_a_history_that_is_none_stops_the_start_with_its_name(tmp_path: Path) -> None:
    StateFile(tmp_path / "down-history.json").save({"applied": [{"stamp": "yesterday"}]})
    with pytest.raises(InvalidCommand, match=r"down-history\.json"):
        Node(tmp_path, "down", operating_mode="downstream")


async def test_the_status_says_where_the_mode_is_from(tmp_path: Path) -> None:
    node = Node(tmp_path, "down", operating_mode="downstream")
    assert node.schema_sync.status()["operating_mode_source"] == "configuration"
    await node.schema_sync.set_mode("upstream")
    status = Node(tmp_path, "down", operating_mode="downstream").schema_sync.status()
    assert (status["operating_mode"], status["operating_mode_source"]) == ("upstream", "run time")
    assert status["configured_operating_mode"] == "downstream"


async def test_the_status_of_an_upstream_has_nothing_of_its_time_as_a_downstream(tmp_path: Path) -> None:
    node = Node(tmp_path, "down", operating_mode="downstream")
    await node.schema_sync.start()
    await until(lambda: node.schema_sync.status()["last_error"], "an error: there are no endpoints")
    await node.schema_sync.set_mode("upstream")
    status = node.schema_sync.status()
    assert (status["state"], status["last_error"]) == ("running", None)


# -- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    if (reason := available()) is not None:
        pytest.skip(reason)
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


def _server(authority: CertificateAuthority, name: str, names: str) -> ssl.SSLContext:
    issued = authority.issue(name, names=names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certfile, issued.keyfile)
    return context


async def test_a_link_over_tls_trusts_the_configured_authority_only(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    good = _server(authority, "good", "IP:127.0.0.1")
    elsewhere = _server(authority, "elsewhere", "DNS:elsewhere.example")
    tls = TlsOptions(cacertfile=authority.cacertfile, verify="verify_peer")
    async with (
        pair(tmp_path, tls=tls) as link,
        listening(link.upstream.serve, good) as port,
        listening(link.upstream.serve, elsewhere) as impostor,
    ):
        await link.follow(endpoints(impostor))
        await link.failed("certificate is not valid for '127.0.0.1'")
        assert link.upstream.sessions == 0
        # Without a scheme, what `ssl_options` are set for is TLS.
        await link.downstream.schema_sync.set_endpoints(endpoints(port))
        await until(lambda: link.status["state"] == "syncing", "a sync over TLS")

    async with pair(tmp_path) as link, listening(link.upstream.serve, good) as port:
        text = endpoints(port).replace("127.0.0.1", "amqps://127.0.0.1")
        await link.follow(text)
        await until(lambda: link.status["state"] == "syncing", "a sync with a scheme of its own")
        assert link.status["upstream_endpoint"] == f"amqps://127.0.0.1:{port}"


async def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    tls = TlsOptions(cacertfile=tmp_path / "none.pem", verify="verify_peer")
    async with pair(tmp_path, tls=tls) as link:
        await link.follow()
        await link.failed("schema_definition_sync.downstream.ssl_options.cacertfile")
        with pytest.raises(PreconditionFailed, match=r"ssl_options\.cacertfile"):
            await link.downstream.schema_sync.diff()
