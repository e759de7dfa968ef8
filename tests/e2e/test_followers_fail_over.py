"""Confirms wait for followers and no longer than they must; one takes over, and the old leader does no harm."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from pamqp import commands

from leveret.model.errors import PreconditionFailed
from leveret.pipeline.upstream.stream_client import StreamClient, connect
from leveret.testing.network.ports import LOOPBACK, accepts, speaks_amqp, wait_until
from leveret.testing.sites.follower_site import PATIENCE_S, FollowerSite, FollowerSiteNode
from leveret.wire.record import EPOCH_PREFIX, FINGERPRINT_PREFIX, OUTGOING_STREAM
from tests.conformance.rawclient import Peer
from tests.e2e.follower_clients import (
    PERSISTENT,
    bodies,
    channel_at,
    declare,
    numbered,
    publish,
    read_stream,
    store_offset,
    stored_offset,
)

ACK_TIMEOUT_S = 1.0
DURABLE = commands.Basic.Properties(delivery_mode=2)
CONFIG = {"segment_bytes_max": str(1 << 20), "replication.ack_timeout": f"{ACK_TIMEOUT_S:g}s"}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[FollowerSite]:
    """A leader and a follower in sync, and a queue `orders`."""
    with FollowerSite(tmp_path, config=CONFIG) as site:
        site.start()
        declare(site.leader, "orders")
        yield site


@pytest.fixture
def three(tmp_path: Path) -> Iterator[FollowerSite]:
    """A leader and two followers in sync, and a queue `orders`."""
    with FollowerSite(tmp_path, followers=2, config=CONFIG) as site:
        site.start()
        declare(site.leader, "orders")
        yield site


def lose_follower(site: FollowerSite, follower: FollowerSiteNode) -> None:
    """Nothing passes between the two any more, and the leader no longer waits."""
    follower.link.stall()
    publish(site.leader, "orders", [b"notices"])
    wait_until(lambda: site.leader.status()["in_sync"] == [], "a follower that is dropped", PATIENCE_S)


def meet_again(follower: FollowerSiteNode) -> None:
    """Something passes again; what was under way is lost."""
    follower.link.cut(abruptly=True)
    follower.link.heal()


# -- promotion ------------------------------------------------------------------------------------


def test_a_follower_takes_over_with_everything_that_was_confirmed(pair: FollowerSite) -> None:
    old, [follower] = pair.leader, pair.followers
    publish(old, "orders", numbered(0, 300, 1000))
    with channel_at(old) as channel:
        for _ in range(100):
            channel.basic_get("orders", auto_ack=True)
        channel.basic_publish("", "orders", b"after the acks", PERSISTENT)
    epoch = old.status()["epoch"]
    old.node.kill9()
    wait_until(lambda: not follower.status()["leader"]["in_sync"], "the loss to be seen", PATIENCE_S)
    assert follower.status()["role"] == "follower", "without etcd nobody takes over by itself"
    outcome = pair.promote(follower)
    assert outcome["epoch"] > epoch
    assert outcome["state"] == "leader"
    assert bodies(follower, "orders") == [*numbered(100, 200, 1000), b"after the acks"]
    publish(follower, "orders", [b"life goes on"])
    status = follower.status()
    assert (status["role"], status["leader"]) == ("leader", None)


@pytest.mark.parametrize("by_restart", [False, True])
def test_what_the_lost_leader_had_handed_out_is_redelivered(pair: FollowerSite, by_restart: bool) -> None:
    old, [follower] = pair.leader, pair.followers
    kinds: dict[str, dict[str, Any]] = {
        "orders": {},
        "safe": {"x_queue_type": "quorum"},
        "urgent": {"x_max_priority": 3},
    }
    for queue, arguments in kinds.items():
        declare(old, queue, **arguments)
        publish(old, queue, numbered(0, 10))
    with channel_at(old) as channel:
        for queue in kinds:
            taken = [channel.basic_get(queue) for _ in range(6)]
            channel.basic_ack(taken[2][0].delivery_tag)
        channel.basic_publish("", "orders", b"after the acks", PERSISTENT)
        old.node.kill9()
    if by_restart:
        follower.node.kill9()
        pair.promote_by_restart(follower)
    else:
        pair.promote(follower)
    for queue in kinds:
        with channel_at(follower) as channel:
            found = {
                body: method.redelivered for method, _, body in (channel.basic_get(queue) for _ in range(9))
            }
        handed_out = {body for number, body in enumerate(numbered(0, 6)) if number != 2}
        assert handed_out <= {body for body, redelivered in found.items() if redelivered}, queue
    publish(follower, "orders", [b"new"])
    with channel_at(follower) as channel:
        fresh = [channel.basic_get("orders") for _ in range(11)][-1]
    assert (fresh[2], fresh[0].redelivered) == (b"new", False)


def stream_client(member: FollowerSiteNode) -> StreamClient:
    return connect([(LOOPBACK, member.node.stream_port)], vhost="/", username="guest", password="guest")


def collected(member: FollowerSiteNode) -> list[bytes]:
    """Raw chunks of what a downstream would be served of the vhost, all that was collected."""
    with stream_client(member) as client:
        end = client.stats(OUTGOING_STREAM)["committed_offset"]
        return [bytes(chunk) for chunk in client.fetch(OUTGOING_STREAM, 0, end)]


@pytest.mark.story
def test_a_follower_that_takes_over_serves_what_was_collected_though_it_was_written_once(
    pair: FollowerSite,
) -> None:
    """Large chunks are only named in the outgoing log (collecting.by_reference): of settled ones, of deleted queues."""
    old, [follower] = pair.leader, pair.followers
    replicate(old)
    declare(old, "gone")
    publish(old, "gone", numbered(0, 30, 100_000))
    publish(old, "orders", numbered(30, 50, 100_000))
    with channel_at(old) as channel:
        channel.queue_delete("gone")
        for _ in range(50):
            channel.basic_get("orders", auto_ack=True)
        # One confirm later all of it is settled.
        channel.basic_publish("", "orders", b"the last", PERSISTENT)
    wait_until(lambda: any(b"the last" in chunk for chunk in collected(old)), "a collection", PATIENCE_S)
    before, called = collected(old), served(old)
    pair.wait_even()
    assert follower.node.log_text().count("replication_connected") == 1, "nothing of it ended the link"
    old.node.kill9()
    pair.promote(follower)
    after, found = collected(follower), served(follower, called["committed_offset"])
    assert found["log_id"] == called["log_id"]
    assert (found["mark"], found["epoch"]) == (called["mark"], called["epoch"]), "who has it so far goes on"
    assert found["writer"] != called["writer"]
    assert after[: len(before)] == before
    assert sum(chunk.count(b"".join(numbered(n, 1, 100_000))) for n in range(80) for chunk in after) == 80
    own = sum(path.stat().st_size for path in (follower.node.data_dir / "outgoing").rglob("*.segment*"))
    assert own < 100_000, "nothing was copied"


def replicate(member: FollowerSiteNode) -> None:
    """Have all queues of vhost / collected for downstreams."""
    member.node.ctl("set_vhost_tags", "/", "standby_replication")
    member.node.ctl("set_policy", "standby", ".*", '{"remote-dc-replicate": true}', "--apply-to", "queues")


def served(member: FollowerSiteNode, end: int = 0) -> dict[str, int]:
    """What a downstream is told of the outgoing log, once so much of it is served; with its records' epochs."""
    with stream_client(member) as client:
        wait_until(lambda: client.stats(OUTGOING_STREAM)["committed_offset"] >= end, "collection", PATIENCE_S)
        stats = client.stats(OUTGOING_STREAM)
        at = end or stats["committed_offset"]
        prefixes = {"epoch": EPOCH_PREFIX, "mark": FINGERPRINT_PREFIX}
        return stats | {
            name: client.query_offset(f"{prefix}{at}", OUTGOING_STREAM) or 0
            for name, prefix in prefixes.items()
        }


@pytest.mark.parametrize("joins", ["before", "after"])
def test_who_transferred_more_than_a_promoted_follower_had_learns_of_it(
    joins: str, pair: FollowerSite
) -> None:
    """The offsets behind its end mean something else from then on (transfer.source asks for the last chunk)."""
    old, [follower] = pair.leader, pair.followers
    replicate(old)
    publish(old, "orders", numbered(0, 10))
    if joins == "after":
        follower.node.stop()
        shutil.rmtree(follower.data_dir)
        follower.follow(old)
    shared = served(old, 10)
    pair.wait_even()
    lose_follower(pair, follower)
    publish(old, "orders", numbered(10, 20))
    ahead = served(old, 30)
    assert shared["epoch"] == ahead["epoch"]
    assert shared["mark"] != ahead["mark"]
    old.node.kill9()
    pair.promote(follower)
    publish(follower, "orders", numbered(30, 40))
    after = served(follower, 30)
    assert after["log_id"] == ahead["log_id"], "by its name it is the same"
    assert after["epoch"] > ahead["epoch"]
    assert after["mark"] != ahead["mark"]
    assert served(follower, 10)["mark"] == shared["mark"], "who has no more goes on"
    with stream_client(follower) as client, pytest.raises(PreconditionFailed, match="another log"):
        list(client.fetch(OUTGOING_STREAM, 30, 40, log_id=ahead["log_id"], writer=ahead["writer"]))


@pytest.mark.story
def test_a_dry_run_tells_what_would_be_lost_and_promotes_nobody(pair: FollowerSite) -> None:
    [follower] = pair.followers
    publish(pair.leader, "orders", numbered(0, 10))
    pair.wait_even()
    outcome = follower.promote(dry_run=True)
    assert outcome["promoted"] is False
    assert (outcome["would_lose"]["known"], outcome["would_lose"]["messages"]) == (True, 0)
    assert follower.status()["role"] == "follower"
    ended = follower.node.ctl("promote_follower", "--dry-run")
    assert "0 messages" in ended.stdout, ended.stdout
    lose_follower(pair, follower)
    publish(pair.leader, "orders", numbered(10, 10))
    wait_until(
        lambda: not follower.promote(dry_run=True)["would_lose"]["known"], "a follower in doubt", PATIENCE_S
    )
    # It counts from the last word of the leader, and does not wait until its silence is taken for its end.
    assert follower.promote(dry_run=True)["would_lose"]["seconds"] > 2
    assert not accepts(follower.node.amqp_port)


def test_a_leader_cannot_be_promoted(pair: FollowerSite) -> None:
    answer = pair.leader.ask("POST", "replication/promote", {})
    assert answer.status >= 400
    assert "leads already" in answer.json()["reason"]
    ended = pair.leader.node.ctl("promote_follower", check=False)
    assert ended.returncode != 0
    assert len(ended.stderr.splitlines()) == 1


def test_a_stream_goes_on_with_its_offsets_and_its_publishers_numbers(pair: FollowerSite) -> None:
    old, [follower] = pair.leader, pair.followers
    declare(old, "events", x_queue_type="stream")
    publish(old, "events", numbered(0, 100, 50))
    store_offset(old, "events", 42)
    publish(old, "events", numbered(100, 10, 50))
    old.node.kill9()
    pair.promote(follower)
    assert stored_offset(follower, "events") == 42
    publish(follower, "events", numbered(110, 10, 50))
    found = read_stream(follower.node.amqp_port, "events")
    assert [message.body for message in found] == numbered(0, 120, 50)


@pytest.mark.story
def test_leadership_goes_to_and_fro_and_nothing_is_lost(three: FollowerSite) -> None:
    expected = []
    for turn in range(4):
        old = three.leader
        mine = numbered(turn * 100, 20, 500)
        publish(old, "orders", mine)
        expected += mine
        old.node.kill9()
        three.promote(three.followers[turn % 2])
        old.follow(three.leader)
        three.wait_in_sync()
    assert bodies(three.leader, "orders") == expected
    assert three.leader.status()["epoch"] == 5
    assert three.assert_identical() > 40_000


@pytest.mark.story
def test_a_follower_that_is_started_as_a_leader_leads(pair: FollowerSite) -> None:
    """The promotion by hand: restart the follower with the leader's flags, point the others at it."""
    old, [follower] = pair.leader, pair.followers
    publish(old, "orders", numbered(0, 20))
    old.node.kill9()
    follower.node.stop()
    follower.lead()
    assert bodies(follower, "orders") == numbered(0, 20)
    publish(follower, "orders", numbered(20, 20))
    pair.leader, pair.followers = follower, [old]
    old.follow(follower)
    pair.wait_in_sync()
    assert bodies(follower, "orders") == numbered(0, 40)
    assert pair.assert_identical() > 0


@pytest.mark.story
def test_a_promoted_node_that_is_killed_and_started_as_before_still_leads(pair: FollowerSite) -> None:
    """Its service manager knows nothing of promotions: `--follow` is still on its command line."""
    old, [follower] = pair.leader, pair.followers
    publish(old, "orders", numbered(0, 20))
    old.node.kill9()
    pair.promote(follower)
    publish(follower, "orders", numbered(20, 20))
    follower.node.kill9()
    follower.node.launch()
    follower.node.wait_ready()
    assert follower.status()["role"] == "leader"
    assert bodies(follower, "orders") == numbered(0, 40)


# -- the old leader -------------------------------------------------------------------------------


def test_an_old_leader_that_meets_the_new_one_stops_serving(pair: FollowerSite) -> None:
    old, [follower] = pair.leader, pair.followers
    publish(old, "orders", numbered(0, 10))
    lose_follower(pair, follower)
    publish(old, "orders", numbered(100, 10))
    with channel_at(old) as channel:
        pair.promote(follower, force=True)
        publish(follower, "orders", numbered(200, 10))
        assert speaks_amqp(old.node.amqp_port)
        meet_again(follower)
        wait_until(lambda: old.status()["role"] == "fenced", "the fence", PATIENCE_S)
        with pytest.raises(pika.exceptions.AMQPError):
            channel.connection.process_data_events(PATIENCE_S)
    wait_until(lambda: not accepts(old.node.amqp_port), "closed doors", PATIENCE_S)
    assert not accepts(old.node.stream_port)
    assert not old.ask("GET", "health/checks/replication").is_success
    answer = old.ask("PUT", "queues/%2F/mine", {"durable": True})
    assert (answer.status, answer.json()["error"]) == (503, "not_leader")
    assert "action=stop_serving" in old.node.log_text()
    assert [each for each in bodies(follower, "orders") if each != b"notices"] == [
        *numbered(0, 10),
        *numbered(200, 10),
    ]


def run_program_of_the_guide(directory: Path, leader: FollowerSiteNode) -> str:
    """Publish what is in `divergent.json` again, as an operator would; return what the program printed."""
    guide = (Path(__file__).parents[2] / "docs" / "followers.md").read_text()
    program = textwrap.dedent(
        guide[guide.index("    import base64, json") : guide.index("Before you run it:")]
    )
    program = program.replace("127.0.0.1:15672", f"127.0.0.1:{leader.node.management_port}")
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=directory, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_an_old_leader_that_follows_sets_aside_what_only_it_had(pair: FollowerSite, tmp_path: Path) -> None:
    old, [follower] = pair.leader, pair.followers
    declare(old, "other", x_queue_type="quorum")
    publish(old, "orders", numbered(0, 10))
    lose_follower(pair, follower)
    alone = [b"notices", *numbered(100, 10, 300)]
    publish(old, "orders", alone[1:])
    publish(old, "other", [b"one more"])
    with channel_at(old) as channel:
        channel.queue_declare("unknown", durable=True)
        channel.basic_publish("", "orders", b"no properties")
        channel.basic_publish(
            "", "orders", b"priced", pika.BasicProperties(headers={"price": Decimal("1.25")})
        )
    alone += [b"no properties", b"priced"]
    publish(old, "unknown", [b"of a queue that only the old leader knew"])
    old.node.kill9()
    meet_again(follower)
    pair.promote(follower, force=True)
    publish(follower, "orders", numbered(200, 10))
    old.follow(pair.leader)
    pair.wait_in_sync()
    quarantine = [(row["queue"], row["payload"]) for row in old.divergent_messages()]
    expected = [("orders", body.decode()) for body in alone]
    expected += [("other", "one more"), ("unknown", "of a queue that only the old leader knew")]
    assert sorted(quarantine) == sorted(expected)
    [report] = old.get("replication/divergent")
    assert report["messages"] == len(expected)
    export = tmp_path / "divergent.json"
    old.node.ctl("list_divergent_messages", "--export", str(export))
    assert sorted(row["payload"] for row in json.loads(export.read_text())) == sorted(
        body for _, body in expected
    )
    assert bodies(follower, "orders") == [*numbered(0, 10), *numbered(200, 10)]
    said = run_program_of_the_guide(tmp_path, follower)
    assert said.count(" published") == len(expected) - 1
    assert "unknown 0 NOT PUBLISHED" in said
    assert bodies(follower, "orders") == [*numbered(0, 10), *numbered(200, 10), *alone]
    pair.wait_even()
    assert pair.assert_identical() > 0
    assert any((old.data_dir / "divergent").rglob("*.segment*"))


def test_of_an_old_leader_only_what_it_had_alone_is_quarantined_although_the_queue_was_drained_meanwhile(
    pair: FollowerSite,
) -> None:
    """The log of a drained queue begins anew, and there is nothing left to compare the old leader's with."""
    old, [follower] = pair.leader, pair.followers
    publish(old, "orders", [bytes(8192)] * 20)
    lose_follower(pair, follower)
    publish(old, "orders", [b"alone"])
    old.node.kill9()
    meet_again(follower)
    pair.promote(follower, force=True)
    assert bodies(follower, "orders") == [bytes(8192)] * 20
    with channel_at(follower) as channel:
        channel.queue_purge("orders")
    wait_until(lambda: not has_segment_at(follower, 0), "a log that begins anew", PATIENCE_S)
    old.follow(pair.leader)
    pair.wait_in_sync()
    assert [(row["queue"], row["payload"]) for row in old.divergent_messages()] == [
        ("orders", "notices"),
        ("orders", "alone"),
    ]
    assert pair.assert_identical() > 0


def has_segment_at(node: FollowerSiteNode, offset: int) -> bool:
    return any((node.data_dir / "queues").glob(f"*/{offset:020d}*segment"))


@pytest.mark.parametrize("by_restart", [False, True])
def test_an_old_leader_that_is_started_as_one_is_fenced(pair: FollowerSite, by_restart: bool) -> None:
    old, [follower] = pair.leader, pair.followers
    publish(old, "orders", numbered(0, 10))
    old.node.kill9()
    if by_restart:
        follower.node.stop()
        pair.promote_by_restart(follower)
    else:
        pair.promote(follower)
    old.lead(wait=False)
    old.wait_answers()
    wait_until(lambda: old.status()["role"] == "fenced", "the fence", PATIENCE_S)
    wait_until(lambda: not accepts(old.node.amqp_port), "closed doors", PATIENCE_S)
    assert follower.status()["role"] == "leader"
    publish(follower, "orders", numbered(10, 10))
    assert old.node.stop() == 0
    old.follow(pair.leader)
    pair.wait_in_sync()
    assert pair.assert_identical() > 0


@pytest.mark.story
@pytest.mark.parametrize("survives", ["the new leader", "who follows it"])
def test_an_old_leader_that_is_started_as_one_asks_its_followers_first(
    three: FollowerSite, survives: str
) -> None:
    """Nobody tells it: its own door is not reached from where the others are."""
    old, [follower, third] = three.leader, three.followers
    publish(old, "orders", numbered(0, 10))
    old.node.kill9()
    follower.link.stall()
    three.promote(follower)
    third.node.stop()
    third.follow(three.leader)
    three.leader.wait_in_sync(third)
    if survives == "who follows it":
        follower.node.kill9()
    led = old.node.log_text().count("leading epoch=")
    old.lead(wait=False)
    old.wait_answers()
    assert old.status()["role"] == "fenced"
    assert not accepts(old.node.amqp_port)
    assert old.node.log_text().count("leading epoch=") == led


@pytest.mark.story
def test_a_fenced_leader_stays_fenced_when_it_is_started_again(pair: FollowerSite) -> None:
    old, [follower] = pair.leader, pair.followers
    lose_follower(pair, follower)
    pair.promote(follower, force=True)
    meet_again(follower)
    wait_until(lambda: old.status()["role"] == "fenced", "the fence", PATIENCE_S)
    old.node.kill9()
    follower.link.refuse()
    old.lead(wait=False)
    old.wait_answers()
    assert old.status()["role"] == "fenced"
    assert not accepts(old.node.amqp_port)


@pytest.mark.story
def test_nothing_is_confirmed_twice_over_when_a_follower_is_promoted_beside_its_leader(
    three: FollowerSite,
) -> None:
    """A planned change: the leader runs, clients publish, and a follower is promoted without force."""
    old, [chosen, _] = three.leader, three.followers
    confirmed: list[int] = []
    ended = threading.Event()

    def publish_on() -> None:
        try:
            with channel_at(old) as channel:
                while True:
                    channel.basic_publish("", "orders", b"%d" % len(confirmed), PERSISTENT)
                    confirmed.append(len(confirmed))
        except pika.exceptions.AMQPError:
            ended.set()

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    wait_until(lambda: len(confirmed) > 200, "confirms", PATIENCE_S)
    outcome = chosen.promote()
    if outcome.get("promoted"):
        three.followers = [each for each in three.members if each is not chosen]
        three.leader = chosen
        wait_until(ended.is_set, "the end of the old leader's clients", PATIENCE_S)
        publisher.join(PATIENCE_S)
        chosen.node.wait_ready()
        found = [int(body) for body in bodies(chosen, "orders")]
        assert found[: len(confirmed)] == confirmed
        assert len(found) <= len(confirmed) + 1
    else:
        assert "force" in outcome["reason"]
        old.node.kill9()
        publisher.join(PATIENCE_S)


# -- confirms -------------------------------------------------------------------------------------


def test_too_few_followers_block_publishers_until_there_are_enough(tmp_path: Path) -> None:
    config = {**CONFIG, "replication.min_in_sync": "1"}
    with FollowerSite(tmp_path, config=config) as site:
        [follower] = site.followers
        site.start()
        declare(site.leader, "orders")
        publish(site.leader, "orders", [b"before"])
        follower.node.kill9()
        wait_until(lambda: site.leader.status()["is_short"], "too few followers", PATIENCE_S)
        assert not site.leader.ask("GET", "health/checks/replication").is_success
        with raw_publisher(site.leader) as peer:
            peer.publish(1, b"waits", routing_key="orders", properties=DURABLE)
            peer.expect(0, commands.Connection.Blocked)
            follower.follow(site.leader)
            answers = sorted(type(frame).__name__ for _, frame in (peer.receive(), peer.receive()))
            assert answers == ["Ack", "Unblocked"]
        site.wait_in_sync()
        assert site.leader.ask("GET", "health/checks/replication").is_success
        assert bodies(site.leader, "orders") == [b"before", b"waits"]
        assert site.assert_identical() > 0


def test_too_few_followers_nack_publishes_where_that_is_configured(tmp_path: Path) -> None:
    config = {**CONFIG, "replication.min_in_sync": "1", "replication.below_min_in_sync": "nack"}
    with FollowerSite(tmp_path, config=config) as site:
        [follower] = site.followers
        site.start()
        declare(site.leader, "orders")
        publish(site.leader, "orders", [b"before"])
        follower.node.kill9()
        wait_until(lambda: site.leader.status()["is_short"], "too few followers", PATIENCE_S)
        with channel_at(site.leader) as channel, pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "orders", b"refused", PERSISTENT)
        assert bodies(site.leader, "orders") == [b"before"]
        follower.follow(site.leader)
        site.wait_in_sync()
        publish(site.leader, "orders", [b"after"])
        assert bodies(site.leader, "orders") == [b"before", b"after"]
        assert site.assert_identical() > 0


def test_what_waits_for_a_follower_is_nacked_when_that_is_given_up(tmp_path: Path) -> None:
    config = {**CONFIG, "replication.min_in_sync": "1", "replication.below_min_in_sync": "nack"}
    with FollowerSite(tmp_path, config=config) as site:
        [follower] = site.followers
        site.start()
        declare(site.leader, "orders")
        with raw_publisher(site.leader) as peer:
            with follower.frozen():
                peer.publish(1, b"not to be had", routing_key="orders", properties=DURABLE)
                assert peer.expect(1, commands.Basic.Nack).delivery_tag == 1
            site.wait_in_sync()
            peer.publish(1, b"later", routing_key="orders", properties=DURABLE)
            assert peer.expect(1, commands.Basic.Ack).delivery_tag == 2


def test_a_follower_that_stands_still_is_waited_for_no_longer_than_configured(pair: FollowerSite) -> None:
    [follower] = pair.followers
    with follower.frozen():
        began_s = time.monotonic()
        publish(pair.leader, "orders", [b"waits for a while"])
        waited_s = time.monotonic() - began_s
        # It is confirmed, and not before the follower was given up. No upper bound: the machine may be busy.
        assert waited_s >= ACK_TIMEOUT_S * 0.9
        assert pair.leader.status()["in_sync"] == []
        publish(pair.leader, "orders", numbered(0, 50))
    pair.wait_in_sync()
    assert pair.assert_identical() > 0


@pytest.mark.story
def test_a_follower_that_stands_still_keeps_nobody_from_stopping_in_order(pair: FollowerSite) -> None:
    [follower] = pair.followers
    publish(pair.leader, "orders", numbered(0, 10))
    with follower.frozen(), raw_publisher(pair.leader) as peer:
        peer.publish(
            1, b"on its way", routing_key="orders", properties=commands.Basic.Properties(delivery_mode=2)
        )
        wait_until(lambda: pair.leader.get("queues/%2F/orders")["messages"] == 11, "the message", PATIENCE_S)
        stopping = threading.Thread(target=pair.leader.node.stop)
        stopping.start()
        # What was taken over is confirmed before the node goes.
        assert peer.expect(1, commands.Basic.Ack).delivery_tag == 1
        peer.expect(0, commands.Connection.Close)
        peer.send(0, commands.Connection.CloseOk())
        stopping.join(PATIENCE_S)
        assert pair.leader.node.server.exit_status == 0
    pair.leader.lead()
    pair.wait_in_sync()
    assert bodies(pair.leader, "orders") == [*numbered(0, 10), b"on its way"]


def raw_publisher(member: FollowerSiteNode) -> Peer:
    """A connection with channel 1 in confirm mode, that waits for nothing by itself."""
    peer = Peer(member.node.amqp_port)
    peer.login()
    peer.open_channel(1)
    peer.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    return peer


def test_a_confirm_of_the_leader_alone_waits_for_nobody(tmp_path: Path) -> None:
    config = {**CONFIG, "replication.confirm": "local", "replication.ack_timeout": "10m"}
    with FollowerSite(tmp_path, config=config) as site:
        [follower] = site.followers
        site.start()
        declare(site.leader, "orders")
        site.wait_even()
        with follower.frozen():
            publish(site.leader, "orders", numbered(0, 50))
        site.wait_in_sync()
        assert site.assert_identical() > 0
