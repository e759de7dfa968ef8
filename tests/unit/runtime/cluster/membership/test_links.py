"""Nodes of a cluster find each other, ask each other, and dial each other, over real sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

import leveret
from leveret.core.replication.cluster import Presence
from leveret.model.errors import PreconditionFailed
from leveret.runtime.cluster.membership import links as links_room
from leveret.runtime.cluster.membership.links import NoSuchNode
from leveret.runtime.link import heartbeat as heart
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.link.questions import OtherVersion, Unanswered, read_as
from leveret.session.link_handshake import HandshakeRefused, SecretsDiffer
from leveret.storage.secret_file import Secret
from leveret.testing.network.link_proxy import LinkProxy
from leveret.testing.network.ports import LOOPBACK, free_port
from leveret.testing.network.waiting import until
from leveret.wire.link import LinkError, Type, message
from tests.unit.runtime.cluster.nodes import PATIENCE_S, SETTINGS, Node, Other, started


class Rows(msgspec.Struct):
    count: int


# Asking.


async def test_every_node_asks_every_other() -> None:
    nodes = [Node(name) for name in ("a", "b", "c")]
    async with started(*nodes):
        for one in nodes:
            one.knows(*nodes)
        for one in nodes:
            for other in nodes:
                if other is one:
                    with pytest.raises(Unanswered, match=f"node {one.name} does not run"):
                        await one.links.ask(one.name, "x", {})
                    continue
                about = {"of": ["queues", 7], "deep": {"a": None}}
                found = await one.links.ask(other.name, "rows", about)
                assert found == {"node": other.name, "what": "rows", "about": about}
        assert sorted(asker for asker, _, _ in nodes[0].asked) == ["b", "c"]
        assert sorted(nodes[0].links.connected()) == ["b", "c"]


async def test_questions_are_answered_as_they_are_ready_and_errors_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b = Node("a"), Node("b")
    waits = asyncio.Event()

    async def answers(what: str, about: Any) -> dict[str, Any]:
        match what:
            case "late":
                await waits.wait()
            case "refused":
                raise PreconditionFailed("not so")
            case "broken":
                raise KeyError("bug")
            case "a list":
                found: Any = [what]
                return found  # type: ignore[no-any-return]
        return {"what": what}

    b.answers = answers
    async with started(a, b):
        a.knows(b)
        late = [asyncio.create_task(a.links.ask("b", "late", {})) for _ in range(50)]
        assert await a.links.ask("b", "at once", {}) == {"what": "at once"}
        with pytest.raises(Unanswered, match=r"^not so$"):
            await a.links.ask("b", "refused", {})
        with pytest.raises(Unanswered, match=r"^it failed there: KeyError$"):
            await a.links.ask("b", "broken", {})
        with pytest.raises(Unanswered, match=r"^it failed there: TypeError$"):
            # The link, and the answers that it owes, outlive an answer that nobody could read.
            await a.links.ask("b", "a list", {})
        assert not any(one.done() for one in late)
        waits.set()
        assert await asyncio.gather(*late) == [{"what": "late"}] * 50
    assert "question_failed what=broken" in caplog.text


async def test_a_node_of_another_version_is_named_with_its_version() -> None:
    """A request or an answer that one version does not know was an error of Python's, and 500 over HTTP."""

    a, b = Node("a"), Node("b")
    b.version = "0.0.9"

    async def answers(what: str, about: Any) -> dict[str, Any]:
        if what == "asks for more":
            return {"found": about["deep"]["down"]}
        return {"known": {"since": 1}}

    b.answers = answers
    async with started(a, b):
        a.knows(b)
        found = await a.links.ask("b", "rows", {})
        with pytest.raises(OtherVersion, match=r"node b of version 0\.0\.9, 'rows': the field 'count' is"):
            found["count"]
        with pytest.raises(OtherVersion, match="the field 'until' is missing"):
            found["known"]["until"]
        with pytest.raises(OtherVersion, match=f"`count`.* this node's .{leveret.__version__}.;"):
            read_as(Rows, found)
        with pytest.raises(Unanswered, match=r"node a, .*'down' is missing.*\(node b of version 0\.0\.9"):
            await a.links.ask("b", "asks for more", {"deep": {}})


async def test_who_is_gone_answers_nobody_and_whose_question_is_forgotten() -> None:
    a, b = Node("a"), Node("b")
    given_up = asyncio.Event()

    async def never(what: str, about: Any) -> dict[str, Any]:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
        return {}

    b.answers = never
    async with started(a, b):
        a.knows(b)
        leader_client = asyncio.create_task(a.links.ask("b", "x", {}))
        await until(lambda: b.asked)
        a.knows()
        with pytest.raises(Unanswered, match="the link ended"):
            await leader_client
        with pytest.raises(Unanswered, match="node b does not run"):
            await a.links.ask("b", "x", {})
        await asyncio.wait_for(given_up.wait(), PATIENCE_S)
        assert a.links.connected() == []


async def test_a_node_that_is_not_reached_yet_is_waited_for() -> None:
    port = free_port()
    a, b = Node("a"), Node("b", replace(SETTINGS, port=port))
    async with started(a):
        a.knows(b=Presence("run-b", f"tcp://{LOOPBACK}:{port}", "", 0, "1"))
        leader_client = asyncio.create_task(a.links.ask("b", "x", {}))
        await asyncio.sleep(0)
        async with started(b):
            assert (await leader_client)["node"] == "b"
        # And one that leaves meanwhile is not waited for any longer.
        await until(lambda: not a.links.connected())
        leader_client = asyncio.create_task(a.links.ask("b", "x", {}))
        await asyncio.sleep(0)
        a.knows()
        with pytest.raises(Unanswered):
            await leader_client


async def test_a_node_that_has_been_missed_for_long_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    a, b = Node("a"), Node("b", replace(SETTINGS, port=port))
    async with started(a):
        a.knows(b=Presence("run-b", f"tcp://{LOOPBACK}:{port}", "", 0, "1"))
        with monkeypatch.context() as context:
            context.setattr(links_room, "LINK_WAIT_S", 0.2)
            with pytest.raises(Unanswered, match="is not reached"):
                await a.links.ask("b", "x", {})
            leader_client = asyncio.create_task(a.links.ask("b", "x", {}))
            for _ in range(20):
                await asyncio.sleep(0)
            assert leader_client.done()
            with pytest.raises(Unanswered, match="is not reached"):
                await leader_client
        async with started(b):
            await until(lambda: bool(a.links.connected()))
            assert (await a.links.ask("b", "x", {}))["node"] == "b"


async def test_a_link_that_is_cut_comes_again_and_one_to_another_place_is_made_anew() -> None:
    a, b = Node("a"), Node("b")
    async with started(a, b):
        assert b.listener.address
        with LinkProxy(b.listener.address.port) as link:
            a.links.know({"b": b.presence(link.port)})
            for _ in range(3):
                assert await a.links.ask("b", "x", {})
                link.cut(abruptly=True)
                await until(lambda: not a.links.connected())
            assert await a.links.ask("b", "x", {})
            accepted = link.accepted
            a.knows(b)
            assert await a.links.ask("b", "x", {})
            await until(lambda: link.connections == 0)
            assert link.accepted == accepted


async def test_a_node_that_falls_silent_is_noticed_by_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heart, "BEAT_S", 0.1)

    a, b = Node("a"), Node("b")
    async with started(a, b):
        assert b.listener.address
        with LinkProxy(b.listener.address.port) as link:
            a.links.know({"b": b.presence(link.port)})
            peer = await a.links.dial("b", "relay")
            peer.receiver = near = Other()
            assert await a.links.ask("b", "x", {})
            link.stall()
            await asyncio.wait_for(
                asyncio.gather(near.is_over.wait(), b.others[0].is_over.wait()), PATIENCE_S
            )
            for end in (near, b.others[0]):
                assert isinstance(end.error, LinkError)
                assert "has sent nothing for" in str(end.error)
            await until(lambda: not a.links.connected())
            link.heal()
            assert await a.links.ask("b", "x", {})


async def test_a_link_over_which_nobody_says_anything_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heart, "BEAT_S", 0.02)

    a, b = Node("a"), Node("b")
    async with started(a, b):
        a.knows(b)
        peer = await a.links.dial("b", "mirror")
        peer.receiver = near = Other()
        before = peer.received_bytes
        await until(lambda: peer.received_bytes > before + 20 * (heart.SILENT_BEATS_MAX + 1))
        assert (peer.is_closed, near.got, b.others[0].got) == (False, [], [])
        peer.close()


# Dialling.


async def test_who_comes_for_what_is_told_and_what_is_said_at_once_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pieces = [bytes([number % 251]) * (1 + number * 97) for number in range(200)] + [
        b"l" * 3_000_000,
        b"last",
    ]

    def talk(peer: LinkPeer) -> None:
        for piece in pieces:
            peer.write(message(Type.AMQP, piece))

    a, b = Node("a"), Node("b")
    b.on_came = talk
    async with started(a, b):
        a.knows(b)
        peer = await a.links.dial("b", "relay", vhost="/ü\n")
        # Whoever dialled takes his time.
        await asyncio.sleep(0.05)
        peer.receiver = near = Other()
        await until(lambda: len(near.got) == len(pieces))
        assert near.got == [(Type.AMQP, piece) for piece in pieces]
        caller, far = b.came[0]
        assert (caller.kind, caller.name, caller.node_id) == ("relay", "a", "id-a")
        assert (caller.run_id, caller.vhost) == ("run-a", "/ü\n")
        peer.write(message(Type.AMQP, b"x" * 100_000))
        await until(lambda: b.others[0].got)
        assert b.others[0].got == [(Type.AMQP, b"x" * 100_000)]
        far.close()
        await near.is_over.wait()
        assert near.error is None
        mirror = await a.links.dial("b", "mirror")
        assert (b.came[1][0].kind, b.came[1][0].vhost) == ("mirror", "")
        mirror.close()
    assert "\n/" not in caplog.text


async def test_who_is_refused_is_told_why() -> None:
    a, b = Node("a"), Node("b")
    async with started(a, b):
        a.knows(b)
        assert await a.links.ask("b", "x", {})
        b.refusal = "this node does not serve yet"
        with pytest.raises(HandshakeRefused, match=r"^this node does not serve yet$"):
            await a.links.dial("b", "relay")
        with pytest.raises(NoSuchNode, match="node c does not run"):
            await a.links.dial("c", "relay")
        assert b.came == []


async def test_what_a_handler_raises_ends_its_link_alone() -> None:
    def broken(peer: LinkPeer) -> None:
        raise PreconditionFailed("no such vhost")

    a, b = Node("a"), Node("b")
    b.on_came = broken
    async with started(a, b):
        a.knows(b)
        peer = await a.links.dial("b", "relay")
        peer.receiver = near = Other()
        await asyncio.wait_for(near.is_over.wait(), PATIENCE_S)
        assert await a.links.ask("b", "x", {})


async def test_nobody_without_the_secret_is_let_in_or_answered(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_room, "LINK_WAIT_S", 0.5)

    a, b = Node("a", secret=Secret(b"t" * 44)), Node("b")
    async with started(a, b):
        a.knows(b)
        b.knows(a)
        with pytest.raises(SecretsDiffer, match="from another node of the cluster"):
            await a.links.dial("b", "relay")
        for one, other in ((a, "b"), (b, "a")):
            with pytest.raises(Unanswered, match="not reached: the secrets differ"):
                await one.links.ask(other, "x", {})
        assert (a.asked, b.asked, b.came) == ([], [], [])
    assert "cluster_link_down node=b error=the secrets differ" in caplog.text
    assert "tttt" not in caplog.text


async def test_another_node_than_the_one_that_was_meant_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links_room, "LINK_WAIT_S", 0.5)

    a, b = Node("a"), Node("b")
    async with started(a, b):
        a.links.know({"c": b.presence(), "d": replace_uri(b, "nowhere")})
        with pytest.raises(
            NoSuchNode, match=r"at tcp://.* is node b, not c: see its cluster\.advertised_uri"
        ):
            await a.links.dial("c", "mirror")
        with pytest.raises(NoSuchNode, match="advertises the address 'nowhere', which is not valid"):
            await a.links.dial("d", "mirror")
        with pytest.raises(Unanswered, match="is node b, not c"):
            await a.links.ask("c", "x", {})


def replace_uri(node: Node, uri: str) -> Presence:
    return Presence(f"run-{node.name}", uri, "", 0, "1")
