"""The decisions of a site: a promotion that many nodes carry out, and what is told of it."""

from __future__ import annotations

from leveret.core.replication.standby_site import (
    PROMOTIONS_MAX,
    PromotionAttempt,
    RecoveredPart,
    RecoveryRequest,
    SiteDecisions,
)
from leveret.core.schema.operating_mode import OperatingMode
from leveret.wire.log_name import log_name


def part(*vhosts: str, count: int = 1) -> RecoveredPart:
    return RecoveredPart(
        vhosts=[*vhosts],
        summary=[{"virtual_host": vhost, "message_count": count} for vhost in vhosts],
        transferred={vhost: (7, 100) for vhost in vhosts},
        marks={vhost: 5 for vhost in vhosts},
    )


def test_parts_of_a_promotion_add_up_whoever_recovers_them_and_a_repeated_one_counts_once() -> None:
    attempt = PromotionAttempt(begun_ms=1).with_part(part("b")).with_part(part("a", "c"))
    assert attempt.recovered == ["a", "b", "c"]
    assert attempt.remaining(["a", "b", "c", "d"]) == ["d"]
    again = attempt.with_part(part("b", count=2))
    assert [(row["virtual_host"], row["message_count"]) for row in again.summary] == [
        ("a", 1),
        ("b", 2),
        ("c", 1),
    ]
    assert again.recovered == attempt.recovered


def test_a_promotion_with_the_same_request_goes_on_and_another_one_begins_anew() -> None:
    begun = SiteDecisions().promotes(PromotionAttempt(begun_ms=1))
    failed = begun.failed("n1: the disk is full")
    assert failed.promoting is not None
    done = SiteDecisions(promoting=failed.promoting.with_part(part("a")))
    same = done.promotes(PromotionAttempt(begun_ms=2)).promoting
    assert same is not None
    assert (same.recovered, same.error, same.begun_ms) == (["a"], "", 2)
    other = done.promotes(PromotionAttempt(begun_ms=3, wanted=RecoveryRequest(exclude=["b"]))).promoting
    assert other is not None
    assert (other.recovered, other.remaining(["a", "b"])) == ([], ["a"])


def test_a_finished_promotion_makes_an_upstream_and_the_newest_are_kept() -> None:
    site = SiteDecisions(operating_mode=OperatingMode.DOWNSTREAM)
    for begun_ms in range(PROMOTIONS_MAX + 3):
        site = site.promotes(PromotionAttempt(begun_ms=begun_ms)).finished(done_ms=begun_ms + 1)
    assert site.operating_mode is OperatingMode.UPSTREAM
    assert (site.promoting, site.is_partial, len(site.promotions)) == (None, False, PROMOTIONS_MAX)
    assert site.promotions[-1].begun_ms == PROMOTIONS_MAX + 2
    assert site.finished(0) is site
    assert site.failed("late") is site


def test_what_was_left_out_is_counted_by_vhost_and_told_until_all_was_requested() -> None:
    wanted = RecoveryRequest(queues=["q"])
    site = SiteDecisions().promotes(PromotionAttempt(begun_ms=1, wanted=wanted))
    assert site.promoting is not None
    attempt = site.promoting.with_left_out([{"virtual_host": "a", "messages": 3}])
    attempt = attempt.with_left_out([{"virtual_host": "b", "messages": 4}]).with_left_out(
        [{"virtual_host": "a", "messages": 2}]
    )
    done = SiteDecisions(promoting=attempt).finished(9)
    found = done.left_out()
    assert found is not None
    assert {row["virtual_host"]: row["messages"] for row in found["vhosts"]} == {"a": 2, "b": 4}
    assert done.promotes(PromotionAttempt(begun_ms=2)).left_out() is None


def test_vhosts_that_a_promotion_did_not_follow_any_more_are_told_until_another_one() -> None:
    begun = PromotionAttempt(begun_ms=1)
    parts = RecoveredPart(vhosts=["a"], unfollowed=["gone"]), RecoveredPart(vhosts=["b"], unfollowed=["left"])
    site = SiteDecisions(promoting=begun.with_part(parts[0]).with_part(parts[1])).finished(2)
    found = site.left_out()
    assert found is not None
    assert (found["unfollowed"], found["vhosts"], site.is_partial) == (["gone", "left"], None, True)
    again = site.promotes(PromotionAttempt(begun_ms=3)).finished(4)
    assert (again.left_out(), again.is_partial) == (None, False)


def test_the_position_in_a_log_is_found_by_its_id_wherever_it_was_kept() -> None:
    """A cluster has an outgoing log at each node; another vhost's log of the same id is another one."""
    one, other, elsewhere = log_name("v", "n1#a"), log_name("v", "n2#b"), log_name("w", "n1#a")
    recovered = RecoveredPart(
        vhosts=["v", "w"], transferred={one: (7, 100), other: (8, 50), elsewhere: (9, 70)}, marks={one: 5}
    )
    site = SiteDecisions(promoting=PromotionAttempt(begun_ms=1).with_part(recovered)).finished(2)
    assert [site.transferred("v", log_id) for log_id in (7, 8, 9)] == [100, 50, None]
    assert site.transferred("w", 9) == 70
    assert (site.transferred_fingerprint("v", 7), site.transferred_fingerprint("v", 8)) == (5, None)
