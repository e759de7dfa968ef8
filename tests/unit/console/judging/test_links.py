from __future__ import annotations

from leveret.console.judging.links import standby_links, upstream_of
from leveret.console.sites.documents import KnownDownstream, SchemaStatus, StandbyDetails, TransferredVhost
from leveret.console.sites.facts import SiteFacts
from tests.unit.console.facts import downstream, upstream


def test_a_downstream_is_linked_to_the_site_that_knows_it() -> None:
    eu, us = upstream(), downstream()
    assert [(link.upstream, link.downstream, link.vhost) for link in standby_links([eu, us])] == [
        ("eu", "us", "orders")
    ]


def test_a_downstream_whose_name_two_sites_have_is_known_by_its_reference() -> None:
    eu, us = upstream(), downstream()
    eu.standby.downstreams = [KnownDownstream("orders", "us.1#77")]
    assert upstream_of(us, [eu, us]) is eu
    assert len(standby_links([eu, us])) == 1


def test_without_that_the_name_of_the_upstream_cluster_decides() -> None:
    eu, us = upstream(standby=StandbyDetails(operating_mode="upstream")), downstream()
    assert upstream_of(us, [eu, us]) is None
    us.schema = SchemaStatus(upstream_cluster="eu.1")
    assert upstream_of(us, [eu, us]) is eu


def test_a_downstream_that_is_no_site_here_is_known_from_its_upstream() -> None:
    [link] = standby_links([upstream()])
    assert (link.upstream, link.downstream, link.known_as, link.lag_records) == ("eu", "", "us.1", 7)


def test_a_standby_that_was_promoted_is_linked_no_more() -> None:
    us = downstream()
    us.standby = StandbyDetails(operating_mode="upstream")
    assert standby_links([upstream(), us]) == []


def clustered_downstream() -> SiteFacts:
    """Site us of three nodes, of which s2 transfers vhost `orders`; s1 did before."""
    us = downstream()
    us.standby.downstream = "us.1/s1@h#77"
    us.standby.vhosts = [TransferredVhost("orders", "connected", node="s2@h", owner="s2@h")]
    return us


def test_a_cluster_that_follows_is_one_site_whichever_of_its_nodes_transfers() -> None:
    eu, us = upstream(), clustered_downstream()
    eu.standby.downstreams = [
        KnownDownstream("orders", "us.1/s1@h", lag_records=900),
        KnownDownstream("orders", "us.1/s2@h", lag_records=4),
    ]
    [link] = standby_links([eu, us])
    assert (link.upstream, link.downstream, link.upstream_lag_records) == ("eu", "us", 4)
    # Without a word of its own it is near what its nearest node lacks.
    [link] = standby_links([eu])
    assert (link.known_as, link.lag_records) == ("us.1", 4)
    us.standby = StandbyDetails(operating_mode="upstream")
    assert standby_links([eu, us]) == []


def test_behind_a_cluster_is_what_is_lacked_of_the_logs_of_all_its_nodes() -> None:
    eu, us = upstream(), downstream()
    eu.standby.downstreams = [
        KnownDownstream("orders", "us.1", node="n1@h", lag_records=3),
        KnownDownstream("orders", "us.1", node="n2@h", lag_records=5),
    ]
    [link] = standby_links([eu, us])
    assert (link.upstream_lags, link.upstream_lag_records) == ({"n1@h": 3, "n2@h": 5}, 8)


def test_a_name_with_a_slash_is_no_node_of_a_cluster() -> None:
    eu, us = upstream(), downstream()
    us.overview.cluster_name = us.standby.downstream = "us/west"
    eu.standby.downstreams = [KnownDownstream("orders", "us/west#9")]
    assert [(link.downstream, link.known_as) for link in standby_links([eu, us])] == [("us", "us/west")]
