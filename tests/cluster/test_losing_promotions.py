"""A mirror that lacks messages leads, as the policy allows: what it lacks is kept where it is, counted, and said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from leveret.testing.sites.cluster_site import ClusterSite, SiteNode

HEAD, TAIL, ACKED = 100, 50, 10


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ClusterSite]:
    with ClusterSite(tmp_path, 3, {"cluster.etcd.lease_ttl": "2s"}) as site:
        yield site


def fill(site: ClusterSite) -> None:
    """Queue `q` of the first node has `HEAD` messages that its mirror lacks, `ACKED` of them settled; `TAIL` more."""
    first, second, _ = site.members
    with site.channel(first) as channel:
        channel.queue_declare("q", durable=True)
        for number in range(HEAD):
            channel.basic_publish("", "q", b"h%d" % number)
        terms = {
            "ha-mode": "nodes",
            "ha-params": [first.node, second.node],
            "ha-promote-on-failure": "always",
            "ha-promote-on-shutdown": "always",
        }
        site.set_policy("two", "^q$", terms)
        site.wait_placed("q", first, mirrors=[second], synchronised=[])
        for number in range(TAIL):
            channel.basic_publish("", "q", b"t%d" % number)
        for _ in range(ACKED):
            method, _, _ = channel.basic_get("q")
        channel.basic_ack(method.delivery_tag, multiple=True)
        site.wait_messages("q", HEAD - ACKED + TAIL)


def alarm(site: ClusterSite, asked: SiteNode) -> str:
    """What the check of all alarms says of the queue, empty for nothing."""
    try:
        site.api("GET", "health/checks/alarms", at=asked)
    except httpx.HTTPStatusError as failed:
        return str(failed.response.json()["reason"])
    return ""


def bodies(site: ClusterSite, asked: SiteNode) -> list[bytes]:
    with site.channel(asked) as channel:
        found = []
        while (body := channel.basic_get("q", auto_ack=True)[2]) is not None:
            found.append(body)
    return found


def test_what_an_unsynchronised_mirror_lacks_is_set_aside_where_it_is_and_an_alarm_counts_it(
    site: ClusterSite,
) -> None:
    first, second, third = site.members
    fill(site)
    first.kill9()
    site.wait_placed("q", second, mirrors=[], asked=third)
    site.wait(lambda: first.node in alarm(site, third), "an alarm that names who has them")
    assert "led_without_all" in second.log_text()
    site.start(first)
    site.wait_placed("q", second, mirrors=[first], synchronised=[first])
    [report] = site.api("GET", "replication/divergent", at=first)
    assert (report["lost"], report["queues"]) == (
        HEAD - ACKED,
        [{"vhost": "/", "queue": "q", "messages": HEAD}],
    )
    counted = f"{HEAD - ACKED} messages that it was led without are quarantined at node {first.node}"
    for node in site.members:
        # Each node knows of the leader's record a moment later.
        site.wait(lambda node=node: "may have the missing ones" not in alarm(site, node), "them to be found")  # type: ignore[misc]
        output = alarm(site, node)
        assert counted in output
        assert "check_alarms" not in output
        checked = node.ctl("check_alarms", check=False)
        assert (checked.returncode, str(HEAD - ACKED) in checked.stderr) == (69, True)
    assert f"messages={HEAD - ACKED} see=list_divergent_messages" in first.log_text()
    assert bodies(site, third) == [b"t%d" % number for number in range(TAIL)]
    shown = first.ctl("list_divergent_messages", "--limit", "1000").stdout
    assert "h99" in shown
    (first.data_dir / "divergent" / report["id"]).rename(site.members[0].data_dir.parent / "kept")
    site.wait(lambda: alarm(site, third) == "", "no alarm of what is dealt with")


@pytest.mark.story
def test_what_a_node_has_that_is_no_mirror_any_more_is_quarantined_too_and_the_alarm_ends(
    site: ClusterSite,
) -> None:
    first, second, third = site.members
    terms = {"ha-mode": "exactly", "ha-params": 2, "ha-promote-on-failure": "always"}
    with site.channel(first) as channel:
        channel.queue_declare("q", durable=True)
        for number in range(HEAD):
            channel.basic_publish("", "q", b"h%d" % number)
        site.set_policy("two", "^q$", {**terms, "ha-mode": "nodes", "ha-params": [first.node, second.node]})
        site.wait_placed("q", first, mirrors=[second], synchronised=[])
    first.kill9()
    site.set_policy("two", "^q$", terms, at=third)
    site.wait_placed("q", second, mirrors=[third], synchronised=[third], asked=third)
    site.start(first)
    site.wait(lambda: bool(site.api("GET", "replication/divergent", at=first)), "a report")
    [report] = site.api("GET", "replication/divergent", at=first)
    assert report["lost"] == HEAD
    site.wait(lambda: "may have the missing ones" not in alarm(site, third), "where they are to be known")
    (first.data_dir / "divergent" / report["id"]).rename(first.data_dir.parent / "kept")
    site.wait(lambda: alarm(site, third) == "", "no alarm of what is dealt with")


@pytest.mark.story
def test_a_mirror_that_stopped_before_its_leader_was_lost_does_not_lead_by_itself(site: ClusterSite) -> None:
    """RabbitMQ 3.10.8 has it lead with an empty queue; its guide wants the node that was the last."""
    first, second, third = site.members
    site.set_policy("ha", "^q$", {"ha-mode": "all", "ha-promote-on-failure": "always"})
    with site.channel(first) as channel:
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for stopped in (second, third, None):
            for number in range(10):
                channel.basic_publish("", "q", b"%d" % number)
            if stopped is not None:
                stopped.stop()
    first.kill9()
    site.start(second)
    site.wait(lambda: "has no leader" in alarm(site, second), "an alarm")
    assert f"Start {first.node}; if it does not come back, use forget_cluster_node" in alarm(site, second)
    row = site.api("GET", "queues/%2F/q", at=second)
    assert (row["state"], row["recoverable_slaves"], row.get("messages")) == (
        "down",
        [second.node, third.node],
        None,
    )
    forgotten = second.ctl("forget_cluster_node", first.node).stdout
    assert (
        f"{third.node}\twithout the messages that only {first.node} had; down until {third.node} is started"
        in forgotten
    )
    assert f"Start {third.node}" in alarm(site, second)
    site.start(third)
    site.wait_placed("q", third, mirrors=[second], asked=second)
    site.wait(lambda: alarm(site, second) == "", "no alarm")
    assert bodies(site, second) == [b"%d" % number for number in range(10)] * 2
