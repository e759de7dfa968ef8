from __future__ import annotations

from leveret.console.judging.topology import link_rows, site_rows
from leveret.console.sites.documents import (
    FollowerStatus,
    NodeReplication,
    NodeStatus,
    SchemaStatus,
    TransferredVhost,
    TransferringNode,
    UpstreamNodeLog,
)
from tests.unit.console.facts import NOW_MS, downstream, upstream


def test_roles_are_what_the_sites_say() -> None:
    assert [row["role"] for row in site_rows([upstream(), downstream()], NOW_MS)] == ["upstream", "standby"]


def test_a_site_that_is_silent_is_not_alive_and_has_its_age() -> None:
    [row] = site_rows(
        [upstream(heard_ms=NOW_MS - 40_000, error="no connection", nodes=[NodeStatus("a", True, uptime=9)])],
        NOW_MS,
    )
    assert (row["is_heard"], row["age_ms"], row["error"]) == (False, 40_000, "no connection")
    [node] = row["nodes"]
    assert (node["name"], node["is_running"], node["state"], node["uptime_ms"]) == (
        "a",
        False,
        "not heard of",
        None,
    )


def test_the_link_of_a_silent_standby_is_not_connected() -> None:
    us = downstream(lag_ms=700, lag_records=3)
    [well] = link_rows([upstream(), us], NOW_MS)
    assert (well["from"], well["to"], well["states"], well["lag_ms"]) == ("eu", "us", ["connected"], 700)
    us.heard_ms = NOW_MS - 60_000
    [silent] = link_rows([upstream(), us], NOW_MS)
    assert silent["states"] == ["not heard of"]


def test_followers_are_nodes_of_their_site() -> None:
    follower = FollowerStatus(name="b", state="catching_up", lag_s=4.0)
    site = upstream(
        replication=NodeReplication(role="leader", followers=[follower]), nodes=[NodeStatus("a", True)]
    )
    [row] = site_rows([site], NOW_MS)
    assert [(node["name"], node["role"], node["state"]) for node in row["nodes"]] == [
        ("a", "leader", "running"),
        ("b", "follower", "catching up"),
    ]


def test_the_error_of_a_link_stands_in_the_table_of_vhosts_only() -> None:
    site = downstream(error="no endpoint answers")
    site.standby.error = "vhost 'orders': no endpoint answers"
    [row] = site_rows([site], NOW_MS)
    assert (row["warnings"], row["vhosts"][0]["error"]) == ([], "no endpoint answers")
    site.standby.error = "no Java"
    [row] = site_rows([site], NOW_MS)
    assert row["warnings"] == ["no Java"]


def test_warnings_are_sentences_about_alarms_conflicts_and_untagged_vhosts() -> None:
    site = upstream(
        nodes=[NodeStatus("a", True, disk_free_alarm=True)],
        schema=SchemaStatus(conflict_count=2),
        tags=("management",),
    )
    site.standby.untagged = ["billing"]
    [row] = site_rows([site], NOW_MS)
    assert row["warnings"] == [
        "Node a has a disk alarm: publishers are blocked.",
        "Vhost billing: a policy asks for a standby, but the vhost has no tag.",
        "Definitions: 2 entities are in conflict with the upstream's.",
        "User guest has no tag monitoring: the site reports its queues only.",
    ]


def test_a_standby_of_many_nodes_says_which_of_them_has_which_vhost_and_how_each_link_does() -> None:
    us = downstream()
    us.nodes = [NodeStatus("s1@h", True), NodeStatus("s2@h", False)]
    us.standby.nodes = [TransferringNode("s1@h", "connecting"), TransferringNode("s2@h", "", "no answer")]
    us.standby.vhosts = [
        TransferredVhost("well", "connected", lag_ms=9_000, node="s1@h", owner="s1@h"),
        TransferredVhost(
            "moving", "connecting", lag_ms=5, node="s2@h", owner="s1@h",
            nodes=[UpstreamNodeLog("n1@h", "connecting", 7), UpstreamNodeLog("n2@h", "connected")],
        ),
    ]  # fmt: skip
    [row] = site_rows([us], NOW_MS)
    assert [(node["state"], node["link"]) for node in row["nodes"]] == [
        ("running", "connecting"),
        ("not running", ""),
    ]
    assert [(each["vhost"], each["node"], each["owner"]) for each in row["vhosts"]] == [
        ("moving", "s2@h", "s1@h"),
        ("well", "s1@h", "s1@h"),
    ]
    assert [(log["node"], log["lag_records"]) for log in row["vhosts"][0]["logs"]] == [
        ("n1@h", 7),
        ("n2@h", 0),
    ]
