from __future__ import annotations

from leveret.console.judging.links import standby_links, upstream_of
from leveret.console.sites.documents import KnownDownstream, SchemaStatus, StandbyDetails
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
