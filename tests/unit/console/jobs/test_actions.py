from __future__ import annotations

from typing import Any

import pytest

from leveret.console.jobs.actions import ACTIONS, BY_NAME, check_given
from leveret.console.sites.documents import (
    ClusterStatus,
    FollowerStatus,
    LeaderStatus,
    NodeReplication,
    SchemaStatus,
    StandbyDetails,
)
from leveret.console.sites.facts import SiteFacts
from leveret.model.errors import InvalidCommand
from tests.unit.console.facts import downstream, queue, upstream


def offered(site: SiteFacts) -> list[str]:
    return [action.name for action in ACTIONS if not action.refusal(site)]


def test_a_site_is_offered_what_makes_sense_there() -> None:
    follower = SiteFacts(
        "f", replication=NodeReplication(role="follower", leader=LeaderStatus(state="streaming"))
    )
    leader = upstream(replication=NodeReplication(role="leader", followers=[FollowerStatus(name="b")]))
    assert offered(upstream()) == ["scrub"]
    assert offered(leader) == ["verify", "scrub"]
    assert offered(downstream()) == ["dry_run", "rehearse", "promote", "recover_into", "scrub"]
    assert offered(follower) == ["follower_dry_run", "promote_follower", "scrub"]
    assert offered(upstream(cluster=ClusterStatus(state="member"))) == ["rebalance", "synchronise", "scrub"]
    assert offered(upstream(schema=SchemaStatus(upstream_endpoints=["a:1"]))) == ["rejoin", "scrub"]


def test_a_promotion_that_was_interrupted_is_offered_again() -> None:
    site = upstream(standby=StandbyDetails(operating_mode="upstream", promotion={"is_running": False}))
    assert "promote" in offered(site)
    assert "goes on with it" in BY_NAME["promote"].forecast(site)[0]


def test_what_cannot_be_taken_back_asks_for_a_word() -> None:
    assert [action.name for action in ACTIONS if action.is_final] == [
        "promote",
        "recover_into",
        "rejoin",
        "promote_follower",
    ]


def test_the_forecast_of_a_promotion_has_the_loss_in_numbers_and_warns_of_a_living_upstream() -> None:
    texts = BY_NAME["promote"].forecast(downstream(lag_records=1_200, heard_ago_ms=400))
    assert texts[0].startswith("Vhost orders: 1,200 records that the upstream had")
    assert "The upstream is alive" in texts[1]


def test_the_forecast_for_mirrors_names_queues_that_lack_some() -> None:
    site = upstream(
        queue("whole", slave_nodes=("b",), synchronised_slave_nodes=("b",)),
        queue("lacking", 40, slave_nodes=("b",), synchronised_slave_nodes=()),
    )
    [text] = BY_NAME["synchronise"].forecast(site)
    assert text == ("1 queues with 40 messages have mirrors that are not synchronised: lacking in orders.")


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
    ],
)
def test_options_that_are_wrong_or_missing_are_refused(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidCommand):
        check_given(BY_NAME[name], given)
