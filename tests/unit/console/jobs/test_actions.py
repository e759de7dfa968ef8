from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leveret.console.jobs.actions import ACTIONS, BY_NAME, check_given, offered
from leveret.console.sites.documents import (
    ClusterStatus,
    FollowerStatus,
    HeldBack,
    KnownDownstream,
    LeaderStatus,
    MemberRow,
    NodeReplication,
    Overview,
    QueueStatus,
    ReadingStatus,
    SchemaStatus,
    StandbyDetails,
)
from leveret.console.sites.facts import SiteFacts
from leveret.model.errors import InvalidCommand
from tests.unit.console.facts import NOW_MS, downstream, queue, upstream

STANDBY = "dry_run rehearse promote recover_into"
FOLLOWING = LeaderStatus(name="a", state="streaming")
READING = ReadingStatus(running=True, octets_done=1, octets_total=2)


def standby(**changes: Any) -> SiteFacts:
    """A standby whose details have these fields."""
    site = downstream()
    for name, value in changes.items():
        setattr(site.standby, name, value)
    return site


def promoted(**changes: Any) -> SiteFacts:
    """A standby that took its upstream's place; the endpoints of that are still set."""
    schema = SchemaStatus(operating_mode="upstream", upstream_endpoints=["eu:5672"])
    return upstream(standby=StandbyDetails(operating_mode="upstream", **changes), schema=schema)


def clustered(*queues: QueueStatus, alive: int = 2) -> SiteFacts:
    members = [MemberRow(f"n{at}", alive=at < alive) for at in range(3)]
    return upstream(*queues, cluster=ClusterStatus(state="member", members=members))


def at_node(role: str, **changes: Any) -> SiteFacts:
    """A site of one node, nobody's standby and followed by none."""
    return upstream(standby=StandbyDetails(), replication=NodeReplication(role=role, node="a", **changes))


STATES: dict[str, tuple[SiteFacts, str]] = {
    "RabbitMQ": (upstream(replication=NodeReplication(), standby=StandbyDetails()), ""),
    "a node alone": (at_node("leader"), "scrub"),
    "an upstream": (upstream(), "scrub"),
    "a standby": (standby(), f"{STANDBY} scrub"),
    "a standby that is being promoted": (standby(promotion={"is_running": True}), "scrub"),
    "a standby whose promotion was interrupted": (
        standby(promotion={"is_running": False}),
        f"{STANDBY} scrub",
    ),
    "a promoted site": (promoted(), "scrub"),
    "a promoted site that left something out": (promoted(left_out={}), f"{STANDBY} scrub"),
    "a promoted site that another one follows": (
        promoted(downstreams=[KnownDownstream("orders", "ap.1", last_seen=NOW_MS - 5_000)]),
        "scrub",
    ),
    "a promoted site whose own standby took its place later": (
        promoted(downstreams=[KnownDownstream("orders", "ap.1", last_seen=NOW_MS - 90_000)]),
        "rejoin scrub",
    ),
    "an upstream whose standby took its place": (
        upstream(schema=SchemaStatus(upstream_endpoints=["us:5672"])),
        "rejoin scrub",
    ),
    "an upstream that was not told where its successor is": (upstream(), "scrub"),
    "a leader": (at_node("leader", followers=[FollowerStatus(name="b")]), "verify scrub"),
    "a leader that compares": (
        at_node("leader", followers=[FollowerStatus(name="b")], verify=READING),
        "scrub",
    ),
    "a node that scrubs": (at_node("leader", scrub=READING), ""),
    "a follower": (at_node("follower", leader=FOLLOWING), "follower_dry_run promote_follower verify scrub"),
    "a follower that has lost its leader": (
        at_node("follower", leader=LeaderStatus(state="connecting")),
        "follower_dry_run promote_follower scrub",
    ),
    "a follower of a standby": (
        replace(standby(), replication=NodeReplication(role="follower", leader=FOLLOWING)),
        "follower_dry_run promote_follower verify scrub",
    ),
    "a follower of an upstream": (
        upstream(
            schema=SchemaStatus(upstream_endpoints=["us:5672"]),
            replication=NodeReplication(role="follower", leader=FOLLOWING),
        ),
        "follower_dry_run promote_follower verify scrub",
    ),
    "a fenced node": (at_node("fenced"), "scrub"),
    "a cluster": (clustered(), "rebalance scrub"),
    "a cluster with mirrors": (clustered(queue(slave_nodes=("b",))), "rebalance synchronise scrub"),
    "a cluster of which one node is left": (
        clustered(queue(slave_nodes=("b",)), alive=1),
        "synchronise scrub",
    ),
    "a cluster that was followed": (
        replace(clustered(), schema=SchemaStatus(upstream_endpoints=["us:5672"])),
        "rejoin rebalance scrub",
    ),
}
"""By what a site is, what an administrator is offered there."""


@pytest.mark.parametrize("tags", ["administrator", "monitoring", "policymaker", "management", ""])
@pytest.mark.parametrize("name", STATES)
def test_a_site_is_offered_what_makes_sense_there_and_its_user_may_do(name: str, tags: str) -> None:
    site, names = STATES[name]
    site = replace(site, tags=tuple(tags.split()))
    found = [action.name for action in offered(site, is_heard=True)]
    assert found == (names.split() if tags == "administrator" else [])
    assert offered(site, is_heard=False) == []
    assert offered(replace(site, refused="no such user"), is_heard=True) == []
    for action in offered(site, is_heard=True):
        assert action.forecast(site) or action.name in ("rebalance", *STANDBY.split())


def test_a_promotion_that_was_interrupted_goes_on_from_the_same_form() -> None:
    site = standby(promotion={"is_running": False})
    assert "goes on with it" in BY_NAME["promote"].forecast(site)[0]


def test_a_preview_has_no_option_that_its_own_action_lacks() -> None:
    for action in ACTIONS:
        if action.preview:
            own = {option.name for option in action.options}
            assert own & {option.name for option in BY_NAME[action.preview].options}


def delayed(**held: Any) -> SiteFacts:
    return at_node("follower", leader=LeaderStatus(name="a", state="delayed", held_back=HeldBack(**held)))


def test_only_a_delayed_follower_is_asked_for_a_moment_and_is_told_what_it_can_leave_out() -> None:
    action = BY_NAME["promote_follower"]
    site = delayed(messages=10, records=12, oldest_at_ms=5_000, newest_at_ms=9_000)
    [moment] = [option for option in action.options if option.kind == "moment"]
    assert (moment.makes_sense(site), moment.span(site)) == (True, (4_999, 9_000))
    assert "can leave out 12 records of it with 10 messages" in action.forecast(site)[0]
    nothing = delayed()
    assert (moment.makes_sense(nothing), moment.span(nothing)) == (True, None)
    assert "holds nothing back now" in action.forecast(nothing)[0]
    plain = at_node("follower", leader=FOLLOWING)
    assert (moment.makes_sense(plain), moment.span(plain)) == (False, None)


@pytest.mark.parametrize(("name", "kept"), [("verify", "verify"), ("scrub", "scrub")])
def test_how_far_a_long_reading_is_comes_from_the_node(name: str, kept: str) -> None:
    action = BY_NAME[name]
    assert action.unit == "octets"
    assert action.measured(at_node("leader", **{kept: READING})) == (1, 2)
    assert action.measured(at_node("leader", **{kept: ReadingStatus()})) is None
    assert action.measured(at_node("leader")) is None


def test_what_cannot_be_taken_back_asks_for_a_word() -> None:
    assert [action.name for action in ACTIONS if action.is_final] == [
        "promote",
        "recover_into",
        "rejoin",
        "promote_follower",
    ]


def test_the_forecast_of_a_promotion_has_the_loss_in_numbers_and_warns_of_a_living_upstream() -> None:
    texts = BY_NAME["promote"].forecast(downstream(lag_records=1_200, heard_ago_ms=400))
    assert texts[1].startswith("Vhost orders: 1,200 records that the upstream had")
    assert "The upstream is alive" in texts[2]


def test_the_forecast_of_a_promotion_counts_nothing_of_a_vhost_whose_data_are_at_a_lost_node() -> None:
    error = "its data are at node n3@h, which does not run"
    texts = BY_NAME["promote"].forecast(downstream(heard_ago_ms=400, state="recover", error=error))
    assert f"Vhost orders: records of its upstream are missing for good: {error}." in texts
    texts = BY_NAME["promote"].forecast(downstream(heard_ago_ms=None, error=error))
    assert texts[1] == f"Vhost orders: the number of missing records is not known: {error}."


def test_the_forecast_for_mirrors_names_queues_that_lack_some() -> None:
    site = upstream(
        queue("whole", slave_nodes=("b",), synchronised_slave_nodes=("b",)),
        queue("lacking", 40, slave_nodes=("b",), synchronised_slave_nodes=()),
    )
    [text] = BY_NAME["synchronise"].forecast(site)
    assert text == "1 queue with 40 messages has mirrors that are not synchronised: lacking in orders."


def test_one_of_something_is_said_so() -> None:
    one = upstream(queue("only", messages=1), overview=Overview(queue_totals={"messages": 1}))
    assert BY_NAME["rebalance"].forecast(one) == ["Node a leads 1 queue now."]
    assert "is read: 1 queue. " in BY_NAME["scrub"].forecast(one)[0]
    assert BY_NAME["rejoin"].forecast(one)[0].startswith("The site has 1 message. ")
    [_, lag] = BY_NAME["dry_run"].forecast(downstream(lag_records=1, missing_messages=1))
    assert lag == (
        "Vhost orders: 1 record that the upstream had when it was last heard, 0.1 s ago, is not here, nor is 1 message "
        "that retention dropped. Its later messages are not here."
    )


@pytest.mark.parametrize(
    ("name", "given", "path", "body"),
    [
        ("dry_run", {}, "/api/replication/standby/dry-run", {}),
        (
            "promote",
            {
                "queues": "a, b,",
                "as_of": " 2026-11-21T14:00:00Z",
                "all_available": True,
                "start_from_scratch": False,
            },
            "/api/replication/standby/promote",
            {"queues": ["a", "b"], "as_of": "2026-11-21T14:00:00Z", "all_available": True},
        ),
        (
            "recover_into",
            {"uri": "amqp://u@h:1/v", "password": "secret"},
            "/api/replication/standby/promote",
            {"to": {"uri": "amqp://u@h:1/v", "password": "secret"}},
        ),
        ("synchronise", {"vhost": "/", "queue": "a/b c"}, "/api/cluster/sync/%2F/a%2Fb%20c", {}),
        ("promote_follower", {"force": True}, "/api/replication/promote", {"force": True}),
        (
            "promote_follower",
            {"apply_until": " 2026-11-21T14:00:00.250Z "},
            "/api/replication/promote",
            {"apply_until_ms": 1_795_269_600_250},
        ),
        (
            "follower_dry_run",
            {"apply_delayed": True},
            "/api/replication/promote",
            {"dry_run": True, "apply_delayed": True},
        ),
        ("verify", {"follower": "b"}, "/api/replication/verify", {"follower": "b"}),
    ],
)
def test_the_request_is_what_the_sites_api_takes(
    name: str, given: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    action = BY_NAME[name]
    chosen = check_given(action, given)
    assert (action.path(chosen), action.body(chosen)) == (path, body)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("scrub", {"force": True}),
        ("promote", {"queues": True}),
        ("promote", {"all_available": "yes"}),
        ("promote", {"queues": "q" * 3_000}),
        ("synchronise", {"vhost": "/"}),
        ("recover_into", {}),
        ("promote_follower", {"apply_until": "yesterday"}),
    ],
)
def test_options_that_are_wrong_or_missing_are_refused(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidCommand):
        check_given(BY_NAME[name], given)
