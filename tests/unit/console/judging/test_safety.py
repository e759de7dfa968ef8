"""The decision as a table: what the sites report, and what a row says then."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.console.judging.conflicts import conflict_warnings
from leveret.console.judging.safety import (
    NOTHING,
    Danger,
    Loss,
    SafetyRow,
    by_vhost,
    counts,
    joint_losses,
    safety_rows,
)
from leveret.console.sites.documents import (
    FollowerStatus,
    LeaderStatus,
    NodeReplication,
    QueueStatus,
    SchemaStatus,
    StandbyDetails,
)
from leveret.console.sites.facts import SiteFacts
from tests.unit.console.facts import NOW_MS, downstream, queue, upstream

ALL = Loss(100, None)


def follower(**changes: Any) -> NodeReplication:
    known: dict[str, Any] = {"name": "b", "state": "streaming", **changes}
    return NodeReplication(role="leader", node="a", followers=[FollowerStatus(**known)])


def no_standby(*queues: QueueStatus, **changes: Any) -> SiteFacts:
    return upstream(*queues, standby=StandbyDetails(operating_mode="upstream"), **changes)


def only(sites: list[SiteFacts]) -> SafetyRow:
    [row] = safety_rows(sites, NOW_MS)
    return row


CASES = [
    # what it is, the sites, danger, loss of the node, loss of the site, a part of the reason
    (
        "nothing",
        [no_standby(queue(policy=None), tagged=False)],
        Danger.ONE_COPY,
        ALL,
        ALL,
        "No policy sends it",
    ),
    ("no policy", [no_standby(queue(policy=None))], Danger.ONE_COPY, ALL, ALL, "has remote-dc-replicate"),
    ("no tag", [no_standby(queue(), tagged=False)], Danger.ONE_COPY, ALL, ALL, "no tag standby_replication"),
    ("no standby yet", [no_standby(queue())], Danger.ONE_COPY, ALL, ALL, "No standby has transferred"),
    (
        "follower in sync",
        [no_standby(queue(), replication=follower(in_sync=True))],
        Danger.ONE_SITE,
        NOTHING,
        ALL,
        "at one site",
    ),
    (
        "follower behind",
        [no_standby(queue(), replication=follower(lag_records=9, lag_s=3.0))],
        Danger.BEHIND,
        Loss(9, 3.0),
        ALL,
        "follower b (streaming) lacks up to 9 messages, the last 3.0 s",
    ),
    (
        "follower joins",
        [no_standby(queue(), replication=follower(state="joining"))],
        Danger.BEHIND,
        ALL,
        ALL,
        "lacks an unknown number",
    ),
    (
        "mirror synchronised",
        [no_standby(queue(slave_nodes=("b", "c"), synchronised_slave_nodes=("c",)))],
        Danger.ONE_SITE,
        NOTHING,
        ALL,
        "at one site",
    ),
    (
        "mirror not synchronised",
        [no_standby(queue(slave_nodes=("b",), synchronised_slave_nodes=()))],
        Danger.BEHIND,
        ALL,
        ALL,
        "mirror b (not synchronised)",
    ),
    (
        "quorum queue",
        [no_standby(queue(type="quorum", leader="a", members=("a", "b", "c"), online=("a", "b")))],
        Danger.ONE_SITE,
        NOTHING,
        ALL,
        "at one site",
    ),
    (
        "quorum queue alone",
        [no_standby(queue(type="quorum", leader="a", members=("a", "b", "c"), online=("a",)))],
        Danger.BEHIND,
        ALL,
        ALL,
        "not running",
    ),
    ("standby whole", [upstream(queue()), downstream()], Danger.SAFE, NOTHING, NOTHING, "has every message"),
    (
        "standby near",
        [upstream(queue()), downstream(lag_records=12, lag_ms=400)],
        Danger.SAFE,
        Loss(12, 0.4),
        Loss(12, 0.4),
        "follows within 0.4 s",
    ),
    (
        "standby behind",
        [upstream(queue()), downstream(lag_records=12, lag_ms=90_000)],
        Danger.BEHIND,
        Loss(12, 90.0),
        Loss(12, 90.0),
        "lacks up to 12 messages, the last 90 s",
    ),
    (
        "standby disconnected",
        [
            upstream(queue()),
            downstream(state="disconnected", lag_records=0, lag_ms=90_000, heard_ago_ms=90_000),
        ],
        Danger.BEHIND,
        Loss(7, 90.0),
        Loss(7, 90.0),
        "lacks up to 7 messages, the last 90 s",
    ),
    (
        "standby far behind",
        [upstream(queue()), downstream(lag_records=5_000, lag_ms=90_000)],
        Danger.BEHIND,
        Loss(100, 90.0),
        Loss(100, 90.0),
        "up to 100 messages",
    ),
    (
        "retention overtook",
        [upstream(queue()), downstream(missing_messages=4)],
        Danger.BEHIND,
        Loss(4, 0.0),
        Loss(4, 0.0),
        "lacks up to 4 messages",
    ),
    (
        "archive not read",
        [upstream(queue()), downstream(is_archive_read=False)],
        Danger.BEHIND,
        Loss(100, 0.0),
        Loss(100, 0.0),
        "archive not read yet",
    ),
    (
        "standby only known to the upstream",
        [upstream(queue())],
        Danger.BEHIND,
        Loss(7, None),
        Loss(7, None),
        "standby us.1 (not heard of) lacks up to 7 messages",
    ),
    (
        "follower and standby",
        [upstream(queue(), replication=follower(in_sync=True)), downstream(lag_records=3, lag_ms=900)],
        Danger.SAFE,
        NOTHING,
        Loss(3, 0.9),
        "The loss of the node loses nothing",
    ),
    ("exclusive", [upstream(queue(exclusive=True)), downstream()], Danger.BY_DESIGN, ALL, ALL, "connection"),
    ("transient", [upstream(queue(durable=False)), downstream()], Danger.BY_DESIGN, ALL, ALL, "its node"),
    ("down", [upstream(queue(state="down")), downstream()], Danger.DOWN, NOTHING, NOTHING, "is down"),
    (
        "upstream gone",
        [
            upstream(queue(), heard_ms=NOW_MS - 60_000),
            downstream(lag_records=2, lag_ms=61_000, heard_ago_ms=61_000),
        ],
        Danger.NOT_HEARD,
        Loss(None, 61.0),
        Loss(None, 61.0),
        "Site eu was last heard 60 s ago. A promotion of us now lacks 2 known records of the virtual host, and all "
        "unreported ones of the last 61 s.",
    ),
]


@pytest.mark.parametrize(
    ("sites", "danger", "if_node", "if_site", "reason"),
    [each[1:] for each in CASES],
    ids=[each[0] for each in CASES],
)
def test_a_queue_is_judged_by_what_the_sites_report(
    sites: list[SiteFacts], danger: Danger, if_node: Loss, if_site: Loss, reason: str
) -> None:
    row = only(sites)
    assert (row.danger, row.if_node, row.if_site) == (danger, if_node, if_site)
    assert reason in row.reason
    assert row.reason.endswith(".")


def test_an_empty_queue_loses_nothing() -> None:
    row = only([no_standby(queue(messages=0))])
    assert (row.danger, row.if_node, row.if_site) == (Danger.ONE_COPY, NOTHING, NOTHING)


def test_a_standby_whose_upstream_nobody_knows_is_a_row_for_its_vhost() -> None:
    row = only([downstream(lag_records=40, lag_ms=30_000, heard_ago_ms=30_000)])
    assert (row.danger, row.vhost, row.queue, row.if_site) == (
        Danger.NOT_HEARD,
        "orders",
        "",
        Loss(None, 30.0),
    )
    assert (
        "last heard its upstream 30 s ago: a promotion now lacks 40 known records, and all later ones"
        in row.reason
    )


def test_what_a_downstream_transfers_its_upstream_answers_for() -> None:
    site = downstream()
    site.queues = [queue(), QueueStatus("own", "/")]
    rows = safety_rows([upstream(queue()), site], NOW_MS)
    assert [(row.site, row.vhost, row.queue) for row in rows] == [("us", "/", "own"), ("eu", "orders", "new")]


def test_the_worst_comes_first_and_more_messages_before_fewer() -> None:
    queues = [
        queue("safe"),
        queue("few", 2, policy=None),
        queue("many", 900, policy=None),
        queue("gone", state="down"),
    ]
    rows = safety_rows([upstream(*queues), downstream()], NOW_MS)
    assert [row.queue for row in rows] == ["gone", "many", "few", "safe"]
    assert counts(rows) == {
        "down": 1, "one_copy": 2, "not_heard": 0, "behind": 0, "one_site": 0, "safe": 1, "by_design": 0,
    }  # fmt: skip


def test_of_a_vhost_messages_add_up_and_seconds_do_not() -> None:
    sites = [upstream(queue("a", 10), queue("b", 20)), downstream(lag_records=15, lag_ms=2_000)]
    [vhost] = by_vhost(safety_rows(sites, NOW_MS))
    assert (vhost["queues"], vhost["messages"], vhost["if_site"]) == (2, 30, Loss(25, 2.0))


def test_of_a_vhost_whose_queues_nobody_reports_no_number_is_known() -> None:
    [vhost] = by_vhost(safety_rows([downstream()], NOW_MS))
    assert (vhost["queues"], vhost["messages"]) == (None, None)


def test_all_vhosts_add_up_and_those_of_sites_that_are_not_heard_apart() -> None:
    heard = no_standby(queue("a", 10), queue("b", 20, exclusive=True))
    heard.site = "us"
    silent = no_standby(queue("a", 5), heard_ms=NOW_MS - 60_000)
    joint = joint_losses(by_vhost(safety_rows([silent, heard], NOW_MS)))
    assert joint == {"heard": Loss(30, None), "silent": Loss(5, None), "silent_sites": ["eu"]}


def test_the_last_report_of_a_standby_that_is_not_heard_of_makes_nothing_safe() -> None:
    silent = downstream(lag_records=0, lag_ms=0, heard_ago_ms=100)
    silent.heard_ms = NOW_MS - 60_000
    row = next(row for row in safety_rows([upstream(queue()), silent], NOW_MS) if row.queue == "new")
    assert (row.danger, row.if_site) == (Danger.BEHIND, Loss(7, 0.0))
    assert "standby us (not heard of) lacks up to 7 messages" in row.reason


def test_a_standby_of_which_nothing_is_known_to_be_missing_is_said_to_lack_what_came_since() -> None:
    row = only([upstream(queue(messages=0)), downstream(state="connecting", lag_ms=17_000)])
    assert row.danger == Danger.BEHIND
    assert row.reason == (
        "No other copy is complete: standby us (connecting) lacks no known message, and may lack those of the "
        "last 17 s."
    )


def promoted() -> SiteFacts:
    """Site us after its promotion: it follows nobody."""
    site = downstream()
    site.standby = StandbyDetails(operating_mode="upstream")
    return site


def test_a_lost_upstream_whose_standby_was_promoted_says_who_took_its_place() -> None:
    silent = upstream(queue())
    silent.heard_ms = NOW_MS - 60_000
    row = only([silent, promoted()])
    assert (row.site, row.danger, row.reason) == (
        "eu",
        Danger.NOT_HEARD,
        "Site eu was last heard 60 s ago. Its standby us was promoted, and serves its copy of the queue.",
    )
    assert row.if_site == Loss(None, None)


def test_an_upstream_that_is_back_beside_its_promoted_standby_is_followed_by_nobody() -> None:
    row = only([upstream(queue()), promoted()])
    assert (row.danger, row.reason) == (
        Danger.ONE_COPY,
        "The only copy is at this node. Its standby us was promoted, and follows no more.",
    )


def following(state: str) -> SiteFacts:
    """Site second, the node b, which follows a."""
    facts = upstream(queue(policy=None), standby=StandbyDetails(), site="second")
    facts.replication = NodeReplication(role="follower", node="b", leader=LeaderStatus(name="a", state=state))
    return facts


def test_the_leader_answers_for_a_follower_also_when_it_is_lost() -> None:
    leads = NodeReplication(role="leader", node="a", followers=[FollowerStatus(name="b", in_sync=True)])
    first = upstream(queue(policy=None), replication=leads)
    [row] = safety_rows([first, following("streaming")], NOW_MS)
    assert (row.site, row.danger) == ("eu", Danger.ONE_SITE)
    first.heard_ms = NOW_MS - 60_000
    [row] = safety_rows([first, following("connecting")], NOW_MS)
    assert (row.danger, row.reason) == (
        Danger.NOT_HEARD,
        "Site eu was last heard 60 s ago; follower b had every message then.",
    )


def test_a_follower_whose_leader_is_not_known_here_is_a_copy_and_no_leader() -> None:
    [row] = safety_rows([following("streaming")], NOW_MS)
    assert (row.danger, [copy.kind for copy in row.copies]) == (Danger.ONE_SITE, ["follower", "leader"])
    [row] = safety_rows([following("connecting")], NOW_MS)
    assert (row.danger, row.reason) == (
        Danger.BEHIND,
        "No other copy is complete: leader a (not heard of) lacks an unknown number of messages.",
    )


def conflicting(*texts: str) -> SiteFacts:
    site = downstream()
    site.schema = SchemaStatus(conflict_count=len(texts), conflicts=list(texts))
    return site


def test_a_queue_that_is_another_one_at_the_standby_is_not_safe_and_its_namesakes_are() -> None:
    upstream_site = upstream(queue("a: b"), queue("new"))
    standby = conflicting("queues orders/a: b: its properties differ", "exchanges orders/new: they differ")
    rows = {row.queue: row for row in safety_rows([upstream_site, standby], NOW_MS)}
    assert (rows["a: b"].danger, rows["new"].danger) == (Danger.BEHIND, Danger.SAFE)
    assert rows["a: b"].reason == (
        "The queue at standby us is another one: its properties differ. "
        "A synchronisation of definitions with --force replaces it."
    )
    [warning] = conflict_warnings([upstream_site, standby])
    assert warning.startswith(
        "Definitions of site us: 2 are in conflict with its upstream's, such as queues "
    )
    assert conflict_warnings([upstream_site, downstream()]) == []


def test_queues_that_differ_in_their_names_alone_are_judged_alike_and_others_by_themselves() -> None:
    rows = safety_rows([upstream(queue("a"), queue("b"), queue("c", 7, policy=None)), downstream()], NOW_MS)
    assert {row.queue: row.danger for row in rows} == {
        "a": Danger.SAFE,
        "b": Danger.SAFE,
        "c": Danger.ONE_COPY,
    }
    assert {row.queue: row.messages for row in rows} == {"a": 100, "b": 100, "c": 7}
