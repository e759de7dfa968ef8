"""Links that open and then fail: how long a downstream waits, whom it asks next, and what it does not miss."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from leveret.model.definitions import Queue
from leveret.model.errors import NotAllowed, PreconditionFailed, StorageError
from leveret.runtime.schema_sync.endpoints import parse_upstream
from leveret.runtime.schema_sync.link import SchemaLink, open_link
from leveret.session import schema_exchange
from leveret.session.amqp10.client import SchemaLinkClient
from leveret.session.amqp10.server import Amqp10Session
from leveret.testing.network.waiting import until
from leveret.wire.schema_sync import VERSION, decode_request
from tests.e2e.schema_pair import TIMING, Node, Pair, a_refused_port, endpoints, garbage, listening, pair

pytestmark = pytest.mark.uvloop

NEVER_MS = 3_600_000
PATIENT = TIMING._replace(backoff_min_s=30.0, backoff_max_s=30.0)


def _tell_of_another_version(upstream: Node) -> None:
    serve = upstream.schema_sync.serve_request

    def damaged(user: str, body: bytes) -> bytes:
        octets = bytearray(serve(user, body))
        octets[3] = VERSION + 1
        return bytes(octets)

    upstream.schema_sync.serve_request = damaged  # type: ignore[method-assign]  # a newer upstream


# -- the wait -------------------------------------------------------------------------------------


async def test_after_a_sync_that_failed_on_an_open_link_the_next_try_waits(tmp_path: Path) -> None:
    async with pair(tmp_path, PATIENT) as link:
        _tell_of_another_version(link.upstream)
        await link.follow()
        await link.failed(f"schema sync format {VERSION + 1} is not known here")
        await asyncio.sleep(0.3)
        assert link.upstream.sessions == 1


async def test_a_notice_of_a_link_that_failed_does_not_shorten_the_wait(tmp_path: Path) -> None:
    async with pair(tmp_path, PATIENT._replace(reply_timeout_s=0.3)) as link:
        connections = 0

        async def notices_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Answers the first request, says that there is news, and no more."""
            nonlocal connections
            connections += 1
            session = Amqp10Session(link.upstream, from_loopback=True)
            while not link.upstream.schema_sync.status()["requests_served"]:
                writer.write(session.receive(await reader.read(65_536), 0))
            link.upstream.put(Queue(vhost="/", name="news"))
            for _ in range(20):
                await asyncio.sleep(0.01)
                writer.write(session.tick(0))
            await reader.read(-1)

        async with listening(notices_only) as port:
            await link.follow(endpoints(port))
            await link.failed("did not reply within 0.3 s")
            await asyncio.sleep(0.3)
            assert link.status["notices"] == 1
            assert connections == 1


async def test_who_closes_a_link_is_not_told_that_it_is_lost(tmp_path: Path) -> None:
    async with pair(tmp_path) as link:
        [endpoint] = parse_upstream(json.loads(endpoints(link.port))).endpoints
        lost: list[str] = []
        for ends in (SchemaLink.close, lambda opened: opened.connection_lost(None)):
            client = SchemaLinkClient(container_id="down", username="replicator", password="secret")
            opened = await open_link(endpoint, client, None, lambda: lost.append("lost"), lambda: None)
            ends(opened)
            assert opened.failure is not None
            lost.append("closed")
        assert lost == ["closed", "lost", "closed"]


# -- the next endpoint ----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["refuses", "is silent", "is damaged"])
async def test_the_next_endpoint_is_tried_when_the_first_lets_us_in_and_no_more(
    tmp_path: Path, fault: str
) -> None:
    async with pair(
        tmp_path, TIMING._replace(reply_timeout_s=0.3), minimum_sync_interval_ms=NEVER_MS
    ) as link:
        good = Node(tmp_path, "good", operating_mode="upstream")
        await good.schema_sync.add_user("replicator", "secret")
        serve = link.upstream.serve
        if fault == "refuses":
            await link.upstream.schema_sync.disable()
        elif fault == "is damaged":
            _tell_of_another_version(link.upstream)
        else:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                session = Amqp10Session(link.upstream, from_loopback=True)
                while octets := await reader.read(65_536):
                    answer = session.receive(octets, 0)
                    if not link.upstream.schema_sync.status()["requests_served"]:
                        writer.write(answer)

        async with listening(serve) as first, listening(good.serve) as second:
            await link.follow(endpoints(first, second))
            await until(lambda: link.status["syncs"], f"a sync with the second ({link.status['last_error']})")
            assert link.status["upstream_cluster"] == "cluster.good"
            assert good.sessions == 1
            good.put(Queue(vhost="/", name="new"))
            found = await link.downstream.schema_sync.diff()
            assert [(row["action"], row["key"]) for row in found] == [("create", ["/", "new"])]


async def test_a_diff_that_no_endpoint_tells_gives_the_reason_of_each(tmp_path: Path) -> None:
    async with pair(tmp_path, TIMING._replace(reply_timeout_s=0.3)) as link, listening(garbage) as noise:
        refused = await a_refused_port()
        await link.downstream.schema_sync.set_endpoints(endpoints(refused, noise))
        with pytest.raises(
            PreconditionFailed, match=f"127.0.0.1:{refused}: .*; 127.0.0.1:{noise}: no AMQP 1.0"
        ):
            await link.downstream.schema_sync.diff()
        await link.upstream.schema_sync.disable()
        await link.downstream.schema_sync.set_endpoints(endpoints(refused, link.port, noise))
        with pytest.raises(NotAllowed, match=f"127.0.0.1:{link.port}: schema replication is disabled"):
            await link.downstream.schema_sync.diff()


async def test_the_order_of_the_endpoints_counts_again_after_a_sync(tmp_path: Path) -> None:
    async with pair(tmp_path, minimum_sync_interval_ms=NEVER_MS) as link:
        good = Node(tmp_path, "good", operating_mode="upstream")
        await good.schema_sync.add_user("replicator", "secret")
        await link.upstream.schema_sync.disable()
        held: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            held.append(writer)
            await good.serve(reader, writer)

        async with listening(link.upstream.serve) as first, listening(serve) as second:
            await link.follow(endpoints(first, second))
            await until(lambda: link.status["syncs"] == 1, "a sync with the second")
            await link.upstream.schema_sync.enable()
            held[0].close()
            await until(lambda: link.status["syncs"] == 2, "a sync after the link was lost")
            assert link.status["upstream_cluster"] == "cluster.up"


@pytest.mark.parametrize(
    "place", ["a..b:5672", f"{'x' * 70}.example:5672", "http://a..b:1", "http://\u00fc..b:1"]
)
async def test_a_host_that_can_have_no_name_is_told_with_its_endpoint_and_passed_over(
    tmp_path: Path, place: str
) -> None:
    async with pair(tmp_path) as link:
        value = {"endpoints": [place], "username": "replicator", "password": "secret"}
        await link.follow(json.dumps(value))
        status = await link.failed(f"{place}: ")
        assert "internal error" not in str(status["last_error"])
        value["endpoints"] = [place, f"127.0.0.1:{link.port}"]
        await link.downstream.schema_sync.set_endpoints(json.dumps(value))
        await until(lambda: link.status["state"] == "syncing", "a sync with the other endpoint")


# -- an upstream that changes while it is told ----------------------------------------------------


async def test_what_changes_in_the_last_comparison_of_a_sync_is_asked_for_although_no_notice_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_exchange, "PART_BYTES", 100)
    async with pair(tmp_path, minimum_sync_interval_ms=NEVER_MS) as link:
        link.upstream.put(*(Queue(vhost="/", name=f"q{number}") for number in range(200)))
        serve = link.upstream.schema_sync.serve_request
        asked: list[str] = []

        def moving(user: str, body: bytes) -> bytes:
            answer = serve(user, body)
            asked.append("ask" if decode_request(body).asks else "compare")
            if asked[-1] == "ask" and asked.count("compare") <= schema_exchange.COMPARED_MAX:
                names = [f"late-{len(asked)}-{number}" for number in range(20)]
                link.upstream.put(*(Queue(vhost="/", name=name) for name in names))
            return answer

        link.upstream.schema_sync.serve_request = moving  # type: ignore[method-assign]  # a change at a moment
        await link.follow()
        await until(
            lambda: (
                link.downstream.schema() == link.upstream.schema()
                and asked.count("compare") > schema_exchange.COMPARED_MAX
            ),
            "all that changed",
        )
        assert link.status["notices"] == 0


# -- a disk that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["restart", "set_mode"])
async def test_a_decision_that_cannot_be_kept_changes_nothing(tmp_path: Path, command: str) -> None:
    async with pair(tmp_path, minimum_sync_interval_ms=100) as link:
        await _linked(link)
        (tmp_path / "down.json.new").mkdir()
        sync = link.downstream.schema_sync
        with pytest.raises(StorageError):
            await (sync.restart() if command == "restart" else sync.set_mode("upstream"))
        assert link.status["operating_mode"] == "downstream"
        await link.synced()
        assert link.upstream.sessions == 1


async def _linked(link: Pair) -> None:
    await link.follow()
    await until(lambda: link.status["state"] == "syncing", "a first sync")


async def test_definitions_of_another_site_are_in_the_log_before_they_replace_those_of_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Endpoints of two sites in one list: a break of the first one's link deleted its queues without a word."""
    async with pair(tmp_path, minimum_sync_interval_ms=NEVER_MS) as link:
        other = Node(tmp_path, "other", operating_mode="upstream")
        await other.schema_sync.add_user("replicator", "secret")
        link.upstream.put(Queue(vhost="/", name="first"))
        async with listening(other.serve) as second:
            await link.follow(endpoints(link.port, second))
            await until(lambda: link.status["syncs"], "a sync with the first")
            await link.synced()
            assert "schema_sync_upstream_changed" not in caplog.text
            await link.upstream.schema_sync.disable()
            link.downstream.schema_sync.sync_now()
            await until(
                lambda: ("/", "first") not in link.downstream.broker.definitions.by_kind["queues"],
                "the second",
            )
            changed = (
                f"from=cluster.up to=cluster.other endpoint=127.0.0.1:{second} hint=if the endpoints are of"
            )
            assert f"schema_sync_upstream_changed {changed}" in caplog.text
