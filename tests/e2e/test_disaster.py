"""A disaster, small: a life at the upstream, its end, a promotion, and exact books of every message.

The story is played once; every test looks at one side of how it ended. Messages and the consumers'
choices follow from a seed; LEVERET_SEED sets another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pika
import pytest

from leveret.testing.applications.applications import ReceivedMessage, now_ms
from leveret.testing.applications.audit import FOREVER, Audit, QueueBooks
from leveret.testing.applications.contents import is_shown, shown_number
from leveret.testing.applications.mixed_messages import declare
from leveret.testing.network.ports import wait_until
from leveret.testing.sites.standby_pair import BEACON, PROMOTE_TIMEOUT_S, StandbyPair, get
from tests.e2e.site import PATIENCE_S, Site, as_published, background, drain_all

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

VHOST: Final = "orders"
ELSEWHERE: Final = "elsewhere"
WORK: Final = ("work-1", "work-2", "work-3")
QUARANTINE: Final = ("gone", "purged", "reborn", "once", "again", "late", "local", "voted")
LEFT: Final = (*WORK, *QUARANTINE[1:])
JUDGED: Final = (*WORK, "reborn", "again", "late", "voted")
PER_QUEUE: Final = 40
LATE: Final = 800
ACKED: Final = 1000
ALONE: Final = 30
CONSUMED_ALONE: Final = 5
"""What happens at the old upstream between its return and its rejoining."""


@dataclass
class Aftermath:
    """How it ended.

    Attributes:
        books: what the audit says of the judged queues.
        found: what the queues had after the promotion.
        found_later: what they had after a second promotion and a restart.
        had: messages of each queue that the standby had before things were undone upstream.
        foretold: what a dry run said would come back, after the disaster.
        rehearsed: what a rehearsal said, before it; `vhosts` are those that were there after it.
        rejoined: what the old upstream said when it came back, as a standby; `divergent` is what it kept,
            `altered` those of them that it shows otherwise than they were published, `after_rejoin` how many messages
            its queues had then.
        elsewhere: what the audit says of what was put into another vhost, by AMQP: queues as they stood before
            things were undone.
        killed_s: the time of the disaster.
    """

    books: Audit
    rejoined: dict[str, Any]
    divergent: list[dict[str, Any]]
    altered: list[dict[str, Any]]
    after_rejoin: dict[str, int]
    found: dict[str, list[ReceivedMessage]]
    found_later: dict[str, list[ReceivedMessage]]
    had: dict[str, int]
    foretold: dict[str, Any]
    rehearsed: dict[str, Any]
    vhosts: set[str]
    elsewhere: Audit
    queues: set[str]
    killed_s: float
    summary: list[dict[str, Any]]
    second: list[dict[str, Any]]
    displayed: list[dict[str, Any]]
    available: list[str]
    standby: dict[str, Any]
    schema: dict[str, Any]
    pipelines: list[int]

    @property
    def total(self) -> QueueBooks:
        """All judged queues together."""
        return self.books.total


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    folder = tmp_path_factory.mktemp("disaster")
    seed = int(os.environ.get("LEVERET_SEED", "1"))
    print(f"LEVERET_SEED={seed}")
    with StandbyPair(VHOST, folder) as pair:
        site = Site(pair.upstream, VHOST, folder, seed)
        live(pair, site)
        had = pair.transferred()
        before = datetime.now(UTC)
        undo(pair, site)
        rehearsed = json.loads(pair.downstream.ctl("rehearse_promotion", "--formatter", "json").stdout)
        vhosts = {vhost["name"] for vhost in get(pair.downstream, "vhosts")}
        die(pair, site)
        elsewhere = recover_elsewhere(pair, site, before)
        yield promote(pair, site, had, rehearsed=rehearsed, vhosts=vhosts, elsewhere=elsewhere)


def live(pair: StandbyPair, site: Site) -> None:
    """Publish and consume; begin to replicate a queue that is full already, while it is published to.

    The standby's node is killed meanwhile, with its transfer half-way.
    """
    pair.start()
    pair.replicate("osr", "^(work-.*|gone|purged|reborn|voted|beacon)$")
    pair.replicate("once", "^once$")
    pair.replicate("again", "^again$")
    with site.channel() as channel:
        declare(channel, [*WORK, *QUARANTINE[:-1]])
        declare(channel, QUARANTINE[-1:], {"x-queue-type": "quorum"})
    site.publish(["late"], LATE // 2)
    for queue in ("gone", "purged", "reborn", "once", "again", "local", "voted"):
        site.publish([queue], PER_QUEUE)
    pair.follow()
    before = site.confirmed()
    consumer = site.consumer(WORK)
    with background(consumer, site.publisher(WORK, 2000), site.publisher(["late"], LATE // 2)):
        wait_until(lambda: sum(pair.transferred().values()) > 0, "the first at the standby", PATIENCE_S)
        pair.downstream.kill9()
        pair.downstream.start()
        pair.replicate("late", "^late$")
        site.wait_confirmed(before + 2000 + LATE // 2)
        wait_until(lambda: len(site.account().acked) > ACKED, "the consumer", PATIENCE_S)
        consumer.stop()
    pair.wait_transferred()
    wait_until(lambda: pair.transferred().get("late") == LATE, "the full queue at the standby", PATIENCE_S)


def undo(pair: StandbyPair, site: Site) -> None:
    """Take back what the standby has already: delete, purge, replicate no more."""
    with site.channel() as channel:
        channel.queue_delete("gone")
        channel.queue_purge("purged")
        channel.queue_delete("reborn")
        declare(channel, ["reborn"])
    site.forget("reborn")
    site.publish(["reborn"], PER_QUEUE // 2)
    pair.upstream.ctl("clear_policy", "--vhost", VHOST, "once")
    pair.upstream.ctl("clear_policy", "--vhost", VHOST, "again")
    pair.replicate("again", "^again$")
    site.publish(["again"], PER_QUEUE)


def die(pair: StandbyPair, site: Site) -> None:
    """Some more is published and left alone; more still is under way when the upstream dies."""
    site.publish(WORK, 1000)
    pair.wait_transferred()
    pair.wait_queues([*LEFT, BEACON])
    with background(site.publisher(WORK)):
        site.wait_confirmed(site.confirmed() + 500)
        pair.upstream.kill9()


def recover_elsewhere(pair: StandbyPair, site: Site, before: datetime) -> Audit:
    """Put two queues as they stood at a moment into another vhost, where there is no such queue, by AMQP."""
    ctl = pair.downstream.ctl
    ctl("add_vhost", ELSEWHERE)
    ctl("set_permissions", "-p", ELSEWHERE, "guest", ".*", ".*", ".*")
    target = f"amqp://guest@127.0.0.1:{pair.downstream.amqp_port}/{ELSEWHERE}"
    command = ["promote_standby_replication_downstream", "--to", target, "--as-of", before.isoformat()]
    ctl(*command, "--queues", "once,purged", input_text="guest\n", timeout_s=PROMOTE_TIMEOUT_S)
    found = drain_all(pair.downstream, ELSEWHERE, ["once", "purged"], keep=False)
    ctl("delete_vhost", ELSEWHERE)
    return site.audit(as_published(site, found), dict.fromkeys(found, FOREVER))


def promote(pair: StandbyPair, site: Site, had: dict[str, int], **before: Any) -> Aftermath:
    """Look before it, promote twice, and restart."""
    killed_s = now_ms() / 1000
    downstream = pair.downstream
    foretold = downstream.ctl(
        "promote_standby_replication_downstream",
        "--dry-run",
        "--formatter",
        "json",
        timeout_s=PROMOTE_TIMEOUT_S,
    )
    available = downstream.ctl(
        "list_vhosts_available_for_standby_replication_recovery", "--formatter", "json"
    )
    first = pair.promote()
    assert first.returncode == 0, first.stderr
    covered = pair.covered(JUDGED)
    found = drain_all(downstream, VHOST, [*LEFT, BEACON], keep=True)
    second = pair.promote()
    assert second.returncode == 0, second.stderr
    downstream.restart()
    standby, schema = pair.status(), get(downstream, "tanzu/osr/schema/status")
    pipelines = pair.transferring()
    displayed = downstream.ctl("display_standby_promotion_summary", "--formatter", "json")
    return Aftermath(
        books=site.audit({queue: found[queue] for queue in JUDGED}, covered),
        found=found,
        found_later=drain_all(downstream, VHOST, [*LEFT, BEACON], keep=False),
        had=had,
        foretold=json.loads(foretold.stdout),
        **before,
        queues={row["name"] for row in get(downstream, f"queues/{VHOST}")},
        killed_s=killed_s,
        summary=json.loads(first.stdout),
        second=json.loads(second.stdout),
        displayed=json.loads(displayed.stdout),
        available=[row["virtual_host"] for row in json.loads(available.stdout)],
        standby=standby,
        schema=schema,
        pipelines=pipelines,
        **come_back(pair, site),
    )


def come_back(pair: StandbyPair, site: Site) -> dict[str, Any]:
    """The old upstream runs again, and applications use it for a while; then it is told who took its place."""
    pair.restart_upstream()
    old = pair.upstream
    with site.channel() as channel:
        for number in range(ALONE):
            properties = pika.BasicProperties(message_id=f"alone {number}", delivery_mode=2)
            channel.basic_publish("", "late", b"", properties)
        for _ in range(CONSUMED_ALONE):
            channel.basic_get("again", auto_ack=True)
    rejoined = pair.rejoin()
    divergent = json.loads(old.ctl("list_divergent_messages", "--formatter", "json").stdout)["messages"]
    pair.wait_queues([*LEFT, BEACON])
    published = {each.number: each for each in site.published}
    listed = [(row, one) for row in divergent if (one := published.get(shown_number(row))) is not None]
    return {
        "rejoined": rejoined,
        "divergent": divergent,
        "altered": [row for row, one in listed if not is_shown(vars(one.properties), one.body, row)],
        "after_rejoin": {row["name"]: row["messages"] for row in get(old, f"queues/{VHOST}")},
    }


def test_what_was_confirmed_before_the_last_transferred_moment_is_recovered(aftermath: Aftermath) -> None:
    assert aftermath.total.lost_unlawfully == 0, aftermath.books
    assert aftermath.total.recovered >= 1000 + LATE


def test_what_was_acked_before_the_last_transferred_moment_does_not_come_back(aftermath: Aftermath) -> None:
    assert aftermath.total.resurrected == 0, aftermath.books
    assert aftermath.total.acked > ACKED


def test_nothing_is_recovered_twice(aftermath: Aftermath) -> None:
    assert aftermath.total.duplicated == 0, aftermath.books


def test_every_queue_has_its_own_order_requeued_messages_included(aftermath: Aftermath) -> None:
    assert aftermath.total.disordered == 0, aftermath.books


def test_exchange_routing_key_properties_and_body_are_as_they_were_published(aftermath: Aftermath) -> None:
    assert aftermath.total.altered == 0, aftermath.books
    sizes = [len(message.body) for queue in JUDGED for message in aftermath.found[queue]]
    assert min(sizes) == 0
    assert max(sizes) > 131_072
    assert any(message.properties.headers for message in aftermath.found[WORK[0]])
    assert {message.exchange for message in aftermath.found[WORK[0]]} == {"", "parcels"}


def test_only_what_was_confirmed_within_the_lag_is_lost(aftermath: Aftermath) -> None:
    assert aftermath.total.lost <= aftermath.books.lag_messages


def test_a_queue_that_was_full_when_its_policy_came_is_recovered_whole(aftermath: Aftermath) -> None:
    assert len(aftermath.found["late"]) == LATE


def test_a_quorum_queue_is_recovered_whole_and_in_order(aftermath: Aftermath) -> None:
    numbers = [message.number for message in aftermath.found["voted"]]
    assert numbers == sorted(numbers)
    assert len(numbers) == PER_QUEUE


def test_nothing_of_a_queue_deleted_upstream_is_resurrected(aftermath: Aftermath) -> None:
    assert aftermath.had["gone"] == PER_QUEUE
    assert aftermath.queues == {*LEFT, BEACON}


def test_a_queue_deleted_and_made_again_has_its_new_messages_only(aftermath: Aftermath) -> None:
    assert aftermath.had["reborn"] == PER_QUEUE
    assert len(aftermath.found["reborn"]) == PER_QUEUE // 2


def test_nothing_of_a_queue_purged_upstream_is_resurrected(aftermath: Aftermath) -> None:
    assert aftermath.had["purged"] == PER_QUEUE
    assert aftermath.found["purged"] == []


def test_nothing_of_a_queue_whose_policy_was_removed_is_resurrected(aftermath: Aftermath) -> None:
    assert aftermath.had["once"] == PER_QUEUE
    assert aftermath.found["once"] == []


def test_a_queue_whose_policy_was_removed_and_set_again_is_recovered_whole(aftermath: Aftermath) -> None:
    assert aftermath.had["again"] == PER_QUEUE
    assert len(aftermath.found["again"]) == 2 * PER_QUEUE


def test_a_queue_without_the_policy_is_not_transferred(aftermath: Aftermath) -> None:
    assert "local" not in aftermath.had
    assert aftermath.found["local"] == []


def test_the_summary_has_what_was_recovered_and_when_it_was_published(aftermath: Aftermath) -> None:
    assert aftermath.available == [VHOST]
    (row,) = aftermath.summary
    assert row["virtual_host"] == VHOST
    assert row["message_count"] == sum(map(len, aftermath.found.values()))
    first, last = (
        datetime.strptime(row[name], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
        for name in ("first_timestamp", "last_timestamp")
    )
    assert aftermath.killed_s - 600 < first <= last <= aftermath.killed_s


def test_a_second_promotion_recovers_nothing_again(aftermath: Aftermath) -> None:
    assert [row["message_count"] for row in aftermath.second] == [0]
    assert aftermath.displayed == aftermath.summary


def as_if_never_seen(taken: ReceivedMessage) -> ReceivedMessage:
    """The message without the flag and the count that say that it was handed out before."""
    properties = copy(taken.properties)
    properties.headers = {
        name: value for name, value in (properties.headers or {}).items() if name != "x-delivery-count"
    } or None
    return taken._replace(properties=properties, redelivered=False)


def unseen(found: dict[str, list[ReceivedMessage]]) -> dict[str, list[ReceivedMessage]]:
    return {queue: [as_if_never_seen(each) for each in taken] for queue, taken in found.items()}


def test_after_a_restart_the_queues_still_hold_what_was_recovered(aftermath: Aftermath) -> None:
    # The first look handed all of them out: they are flagged as redelivered after it, and quorum queues count.
    assert unseen(aftermath.found_later) == unseen(aftermath.found)


def test_after_a_restart_the_promoted_node_is_an_upstream_and_follows_nobody(aftermath: Aftermath) -> None:
    assert (aftermath.standby["operating_mode"], aftermath.standby["state"]) == ("upstream", "running")
    assert aftermath.schema["operating_mode"] == "upstream"
    assert aftermath.pipelines == []


def test_a_dry_run_foretells_what_comes_back_queue_by_queue(aftermath: Aftermath) -> None:
    foretold = {row["queue"]: row["message_count"] for row in aftermath.foretold["queues"]}
    assert foretold == {queue: len(found) for queue, found in aftermath.found.items() if found}
    [lost] = aftermath.foretold["vhosts"]
    assert (lost["virtual_host"], lost["state"]) == (VHOST, "connecting")


def test_a_rehearsal_compares_every_message_and_leaves_nothing_behind(aftermath: Aftermath) -> None:
    rehearsed = {row["queue"]: row["message_count"] for row in aftermath.rehearsed["queues"]}
    assert aftermath.rehearsed["compared"] == sum(rehearsed.values()) >= LATE
    assert rehearsed["late"] == LATE
    assert aftermath.rehearsed["recovered_s"] > 0
    assert {VHOST} <= aftermath.vhosts
    assert not any("rehearsal" in vhost for vhost in aftermath.vhosts)


def test_queues_as_they_stood_at_a_moment_go_to_another_broker(aftermath: Aftermath) -> None:
    assert aftermath.elsewhere.balances, aftermath.elsewhere
    assert {line.queue: line.recovered for line in aftermath.elsewhere.lines} == {
        "once": PER_QUEUE,
        "purged": PER_QUEUE,
    }


def name_of(row: dict[str, Any]) -> str:
    """The message id of a message that is set aside, or its number."""
    return dict(row["properties"]).get("message_id") or str(shown_number(row))


def test_an_upstream_that_comes_back_keeps_what_the_promoted_one_never_saw(aftermath: Aftermath) -> None:
    kept = {(row["queue"], name_of(row)) for row in aftermath.divergent}
    assert aftermath.altered == []
    alone = {("late", f"alone {number}") for number in range(ALONE)}
    assert alone <= kept
    assert aftermath.rejoined["messages"] == len(aftermath.divergent) == len(kept)
    seen = {(queue, str(message.number)) for queue, found in aftermath.found.items() for message in found}
    assert not kept & seen
    assert len(kept - alone) >= aftermath.total.lost
    assert aftermath.rejoined["settlements_lost"] >= CONSUMED_ALONE


def test_an_upstream_that_comes_back_follows_without_old_messages(aftermath: Aftermath) -> None:
    not_replicated = {"once", "local"}
    assert aftermath.after_rejoin.keys() == {*LEFT, BEACON}
    left = {queue for queue, messages in aftermath.after_rejoin.items() if messages}
    assert left <= not_replicated, "what is not replicated is nobody else's: it stays"
