"""replication.placement: the next record of a queue; the orders of steps are in tests/mutants/mutations/orders.toml."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import pytest

from leveret.core.replication.cluster import HandOver, Placement, Presence
from leveret.core.replication.leader_and_mirrors import QueuePromotion
from leveret.core.replication.placement import (
    ClusterView,
    NextPlacement,
    PendingSurvey,
    PlacementStep,
    RequiredMirrors,
    asked_without,
    first,
    following,
    handed_over,
    is_lost,
    led_by_most_complete,
    led_when_started,
    must_be_gone,
    promotion,
    step,
    taken_over,
    withdrawn,
)
from leveret.core.rules.mirror_policy import NOT_MIRRORED, MirrorPolicy

ALL = MirrorPolicy(mode="all")
MAJORITY = MirrorPolicy(mode="all", confirm="majority")


def on(*nodes: str) -> MirrorPolicy:
    return MirrorPolicy(mode="nodes", params=nodes)


def cluster_view(alive: str = "abcd", *, me: str = "a", members: str = "abcd") -> ClusterView:
    def backwards(nodes: Sequence[str]) -> Sequence[str]:
        return nodes[::-1]

    running = {node: Presence(f"{node}1", "", "", 0, "") for node in alive}
    return ClusterView(me, f"{me}1", list(members), running, backwards)


def placed(mirrors: str = "", synchronised: str = "", stopped: str = "", **changes: Any) -> Placement:
    found = Placement(7, "a", "a1", 3, tuple(mirrors), tuple(synchronised), tuple(stopped))
    return msgspec.structs.replace(found, **changes)


def shown(placement: Placement) -> tuple[str, str, str, str]:
    """Leader, mirrors, synchronised and stopped, a letter a node."""
    lists = (placement.mirrors, placement.synchronised, placement.stopped)
    return (placement.leader, *("".join(nodes) for nodes in lists))  # type: ignore[return-value]


# -- who leads a new queue, and one whose mirrors come and go -------------------------------------


def test_a_new_queue_is_of_its_leaders_present_run() -> None:
    assert first(9, "b", NOT_MIRRORED, cluster_view(), exclusive=True) == Placement(
        9, "b", "b1", 1, exclusive=True
    )
    assert first(9, "a", NOT_MIRRORED, cluster_view("b"), exclusive=False).run_id == "a1"


def test_a_leader_takes_mirrors_and_those_that_are_ready_are_to_be_synchronised() -> None:
    found = following(placed(), ALL, "c", "c", cluster_view())
    assert found == NextPlacement(placed("bcd", "c"))
    assert following(placed("db", "db"), ALL, "bd", "bd", cluster_view()).placement == placed("dbc", "db")


def test_who_is_gone_is_no_mirror_and_keeps_its_copy_as_long_as_it_may_return() -> None:
    assert shown(following(placed("bcd", "bcd"), ALL, "bd", "bd", cluster_view("abd")).placement) == (
        "a",
        "bd",
        "bd",
        "c",
    )
    listed = following(placed("bc", "bc", "d"), on("a", "b"), "b", "b", cluster_view("ab"))
    assert shown(listed.placement) == ("a", "b", "b", "")
    back = following(placed("b", "b", "dc"), ALL, "b", "b", cluster_view("abc")).placement
    assert shown(back) == ("a", "bc", "b", "d")
    forgotten = following(placed("b", "b", "cd"), ALL, "b", "b", cluster_view("ab", members="abc")).placement
    assert shown(forgotten) == ("a", "b", "b", "c")
    assert shown(following(placed("b", "b", "c"), NOT_MIRRORED, "b", "b", cluster_view()).placement) == (
        "a",
        "",
        "",
        "",
    )


def test_who_runs_again_and_was_replaced_gives_its_copy_up_once_the_others_have_everything() -> None:
    """Such copies were kept for as long as their node was a member: nothing of them was ever dropped."""
    two, back = MirrorPolicy(mode="exactly", params=2), cluster_view("abc", members="abcd")
    assert shown(following(placed("b", "", "cd"), two, "", "", back).placement) == ("a", "b", "", "cd")
    assert shown(following(placed("b", "", "cd"), two, "b", "b", back).placement) == ("a", "b", "b", "d")


def test_a_leader_that_has_begun_anew_is_recorded_as_what_it_is() -> None:
    before = placed("bcd", "bcd", run_id="a0")
    assert following(before, ALL, "bcd", "bcd", cluster_view()).placement == placed("bcd", "bcd")


def test_the_record_is_to_say_what_confirms_are_to_wait_for() -> None:
    assert following(placed("bcd"), MAJORITY, "", "", cluster_view()).placement.majority
    assert not following(placed("bcd", majority=True), ALL, "", "", cluster_view()).placement.majority
    unmirrored = msgspec.structs.replace(MAJORITY, mode="")
    assert not following(placed(majority=True), unmirrored, "", "", cluster_view()).placement.majority


def test_a_leader_that_the_policy_does_not_list_moves_its_queue_once_the_next_one_is_ready() -> None:
    before = placed("b", "b")
    not_ready = following(before, on("b", "c"), "", "", cluster_view())
    assert (shown(not_ready.placement), not_ready.move_to) == (("a", "bc", "", ""), "")
    ready = following(before, on("b", "c"), "b", "b", cluster_view())
    assert (shown(ready.placement), ready.move_to) == (("a", "bc", "b", ""), "b")
    assert following(placed("d"), on("b"), "", "", cluster_view()).move_to == ""


# -- what may be recorded when --------------------------------------------------------------------


def stepped(
    before: Placement, synchronised: str, fulfilled: RequiredMirrors | None = None, **changes: Any
) -> PlacementStep:
    wanted = msgspec.structs.replace(before, synchronised=tuple(synchronised), run_id="a1", **changes)
    return step(before, wanted, fulfilled)


def waits(*sets: Collection[str], majority: bool = False) -> RequiredMirrors:
    return RequiredMirrors(tuple(frozenset(nodes) for nodes in sets), majority)


def test_a_mirror_is_recorded_only_when_it_has_what_was_promised_without_it() -> None:
    before = placed("bcd", "b")
    assert stepped(before, "bc") == PlacementStep(before, waits("b", "bc"), is_open=True)
    assert stepped(before, "bc", waits("b", "bcd")).is_open
    done = stepped(before, "bc", waits("b", "bc"))
    assert done == PlacementStep(placed("bcd", "bc"), waits("b", "bc"), is_open=False)


def test_a_mirror_is_taken_out_at_once_and_waited_for_until_that_is_recorded() -> None:
    before = placed("bcd", "bc")
    assert stepped(before, "b") == PlacementStep(placed("bcd", "b"), waits("bc"), is_open=False)
    assert stepped(before, "") == PlacementStep(placed("bcd"), waits("bc"), is_open=False)
    both = stepped(before, "bd")
    assert both == PlacementStep(placed("bcd", "b"), waits("bc"), is_open=False)


def test_what_was_waited_for_and_is_not_wanted_any_more_is_waited_for_no_longer() -> None:
    before = placed("bcd", "b")
    assert stepped(before, "b", waits("b", "bc")) == PlacementStep(before, waits("b"), is_open=False)


def test_everything_else_of_a_record_changes_while_a_mirror_is_not_ready() -> None:
    before = placed("b", "b", "c")
    found = step(before, placed("bcd", "bd"), None)
    assert (shown(found.placement), found.is_open) == (("a", "bcd", "b", ""), True)


def test_a_majority_is_recorded_before_promises_count_on_it() -> None:
    before = placed("bc", "bc")
    assert stepped(before, "bc", majority=True) == PlacementStep(
        placed("bc", "bc", majority=True), waits("bc"), is_open=False
    )
    recorded = placed("bc", "bc", majority=True)
    assert stepped(recorded, "bc") == PlacementStep(recorded, waits("bc", majority=True), is_open=False)


def test_that_all_have_everything_is_recorded_once_they_have_it() -> None:
    before = placed("bc", "bc", majority=True)
    assert stepped(before, "bc", majority=False) == PlacementStep(before, waits("bc"), is_open=True)
    assert stepped(before, "bc", waits("bc"), majority=False).placement == placed("bc", "bc")
    smaller = stepped(before, "b", majority=False)
    assert smaller == PlacementStep(before, waits("bc", "b", majority=True), is_open=True)


def test_another_majority_is_recorded_when_both_have_everything() -> None:
    before = placed("bcd", "bc", majority=True)
    for wanted in ("b", "bcd", "cd"):
        opened = stepped(before, wanted)
        assert opened == PlacementStep(before, waits("bc", wanted, majority=True), is_open=True)
        assert stepped(before, wanted, opened.waits).placement == placed("bcd", wanted, majority=True)


def test_a_mirror_that_counts_to_a_majority_stays_recorded_though_it_is_wanted_no_more() -> None:
    before = placed("bc", "bc", majority=True)
    found = step(before, placed("b", "b", "c", majority=True), None)
    assert found == PlacementStep(before, waits("bc", "b", majority=True), is_open=True)


def test_nobody_is_recorded_where_too_few_of_a_majority_are_left() -> None:
    before = placed("bcd", "bcd", majority=True)
    found = step(before, placed("b", "b", "cd", majority=True), None)
    assert found == PlacementStep(
        placed("b", "", "cd", majority=True), waits("bcd", majority=True), is_open=False
    )


def test_a_leader_that_has_begun_anew_records_that_before_it_confirms_by_majority() -> None:
    before = placed("bc", "bc", run_id="a0", majority=True)
    found = stepped(before, "c")
    assert found == PlacementStep(placed("bc", "bc", majority=True), waits("bc"), is_open=False)
    unmoved = placed("bc", "bc", run_id="a0")
    assert stepped(unmoved, "c").placement == placed("bc", "c")


# -- who leads after ------------------------------------------------------------------------------


def test_what_confirms_waited_for_is_the_records_word_and_not_the_policys() -> None:
    alive = cluster_view("bcd").alive
    assert promotion(placed("bcd", "bcd", majority=True), ALL, alive).asks == ("c", "d")
    assert promotion(placed("bcd", "bcd"), MAJORITY, alive).asks == ()
    few = promotion(placed("bcd", "bcd", majority=True), ALL, cluster_view("b").alive)
    assert (few.leader, few.is_complete) == ("b", False)


def test_who_takes_over_is_one_term_higher_and_whoever_is_synchronised_stays_so() -> None:
    before = placed("bcd", "bd", "e", exclusive=False)
    promoted = promotion(before, ALL, cluster_view("bcd").alive)
    after = taken_over(before, promoted, cluster_view("bcd", me="b"))
    assert (shown(after), after.term, after.run_id) == (("b", "cd", "d", "ea"), 4, "b1")


def test_mirrors_that_were_gone_before_their_leader_keep_their_copies() -> None:
    before = placed("bcd", "cd", "")
    promoted = promotion(before, ALL, cluster_view("b").alive)
    assert not promoted.is_complete
    after = taken_over(before, promoted, cluster_view("b", me="b"))
    assert shown(after) == ("b", "", "", "cda")


def test_where_messages_are_lost_nobody_is_recorded_and_nobody_who_has_them_may_have_come_back() -> None:
    before = placed("bcd", "cd")
    promoted = promotion(before, ALL, cluster_view("b").alive)
    assert must_be_gone(before, promoted) == ("c", "d")
    assert must_be_gone(before, promotion(before, ALL, cluster_view("bd").alive)) == ()
    by_majority = placed("bcd", "bcd", majority=True)
    few = promotion(by_majority, MAJORITY, cluster_view("b").alive)
    assert must_be_gone(by_majority, few) == ("c", "d")


def test_a_mirror_that_lacks_messages_and_was_stopped_when_the_leader_was_lost_does_not_lead() -> None:
    unready = placed("bcd", "d")
    assert promotion(unready, ALL, "bc", "b").leader == "c"
    assert promotion(unready, ALL, "bc", "bc").leader is None
    assert promotion(unready, ALL, "bd", "bd") == promotion(unready, ALL, "bd")
    few = placed("bcd", "cd", majority=True)
    assert promotion(few, ALL, "c", "c").leader is None
    # One ran, so the queue goes on, with the best copy that there is now.
    assert promotion(few, ALL, "bc", "c").leader == "c"
    closed = placed("bc", closed=True)
    shutdown = MirrorPolicy(mode="all", promote_on_shutdown="always")
    assert (promotion(closed, shutdown, "bc").leader, promotion(closed, shutdown, "bc", "bc").leader) == (
        "b",
        None,
    )


def test_a_mirror_that_cannot_read_its_copy_is_recorded_no_more_and_is_the_last_to_lead() -> None:
    found = withdrawn(placed("bcd", "bd"), "b", 5)
    assert shown(found) == ("a", "cdb", "d", "")
    assert promotion(found, ALL, "bcd").leader == "d"
    assert withdrawn(found, "b", 5) == found
    assert withdrawn(placed("bcd", "cd"), "b", 5) == placed("cdb", "cd", leader_wrote=5)
    # Its leader is back, or another one leads: it writes all that counts.
    for after in (
        following(found, ALL, "", "", cluster_view()).placement,
        taken_over(found, promotion(found, ALL, "bcd"), cluster_view("bcd", me="d")),
        led_when_started(found, "c"),
    ):
        assert (found.leader_wrote, after.leader_wrote) == (5, 0)


@pytest.mark.parametrize(
    ("recorded", "left"),
    [
        # One of two may have alone, beside the leader, what was confirmed.
        ("b", ""),
        ("bc", ""),
        # Two of three have all of it, whoever they are.
        ("bcd", "cdb"),
    ],
)
def test_a_majority_without_one_that_cannot_read_its_copy_has_everything_if_it_is_large(
    recorded: str, left: str
) -> None:
    found = withdrawn(placed("bcd", recorded, majority=True), "b", 5)
    assert shown(found) == ("a", "cdb", left, "")
    assert promotion(found, MAJORITY, "cd").is_complete == bool(left)
    assert withdrawn(found, "b", 5) == found


def test_a_leader_that_cannot_read_what_it_has_is_followed_by_a_mirror_that_has_all() -> None:
    promoted = promotion(placed("bcd", "cd"), ALL, "bcd")
    assert shown(taken_over(placed("bcd", "cd"), promoted, cluster_view())) == ("c", "bd", "d", "a")


def test_after_a_majority_was_asked_who_has_most_leads_and_only_its_equals_stay_recorded() -> None:
    before = placed("bcd", "bcd", majority=True)
    promoted = promotion(before, MAJORITY, cluster_view("bcd").alive)
    me = cluster_view("bcd", me="b")
    after = led_by_most_complete(before, promoted, {"b": (3, 10), "c": (4, 8), "d": (4, 8)}, me)
    assert after is not None
    assert (shown(after), after.term, after.run_id, after.majority) == (("c", "bd", "d", "a"), 4, "c1", False)
    own = led_by_most_complete(before, promoted, {"b": (4, 9), "c": (4, 8), "d": (4, 8)}, me)
    assert own is not None
    assert shown(own) == ("b", "cd", "", "a")


def test_after_too_few_have_answered_nobody_leads() -> None:
    before = placed("bcd", "bcd", majority=True)
    promoted = promotion(before, MAJORITY, cluster_view("bcd").alive)
    ends = {"b": (3, 10), "c": (4, 8)}
    assert led_by_most_complete(before, promoted, ends, cluster_view("bcd", me="b")) is not None
    assert led_by_most_complete(before, promoted, {"b": (3, 10)}, cluster_view("bcd", me="b")) is None
    assert led_by_most_complete(before, promoted, ends, cluster_view("bd", me="b")) is None
    assert led_by_most_complete(before, QueuePromotion("b"), {}, cluster_view("b", me="b")) is None


def test_a_queue_is_handed_over_with_those_that_have_all_of_it() -> None:
    before = placed("bcd", "bcd", majority=True)
    after = handed_over(before, "c", {"c", "d"}, cluster_view())
    assert (shown(after), after.term, after.run_id, after.majority) == (("c", "bd", "d", "a"), 4, "c1", False)


def test_what_was_handed_out_is_recorded_for_the_next_leader_and_for_none_after_it() -> None:
    after = handed_over(placed("bcd", "bcd"), "c", {"c", "d"}, cluster_view(), 9)
    assert after.hand_over == HandOver(after.term, 9)
    again = handed_over(after, "d", {"d"}, cluster_view(), 12)
    assert again.hand_over == HandOver(again.term, 12)
    assert handed_over(again, "b", {"b"}, cluster_view()).hand_over is None
    taken = taken_over(again, QueuePromotion("b", ("a",)), cluster_view())
    forgotten = led_when_started(again, "b")
    for later in (taken, forgotten):
        assert later.hand_over is None or later.hand_over.term < later.term


def test_a_mirror_that_was_stopped_leads_once_it_starts_and_nobody_is_its_mirror_before() -> None:
    after = led_when_started(placed("", "", "bc", majority=True), "c")
    assert (shown(after), after.term, after.run_id, after.majority) == (("c", "", "", "b"), 4, "", False)
    assert shown(led_when_started(placed("bcd", "b", "da"), "c")) == ("c", "", "", "bd")


@pytest.mark.parametrize(
    ("changes", "durable", "alive", "lost"),
    [
        ({}, True, "", False),
        ({}, False, "a", False),
        ({}, False, "b", True),
        ({"run_id": "a0"}, False, "a", True),
        ({"exclusive": True}, True, "b", True),
        ({"exclusive": True}, True, "ab", False),
    ],
)
def test_what_only_a_process_has_is_gone_with_it(
    changes: dict[str, Any], durable: bool, alive: str, lost: bool
) -> None:
    assert is_lost(placed(**changes), cluster_view(alive).alive, durable=durable) is lost


# -- a leader that is forgotten -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("synchronised", "members", "alive", "running", "silent"),
    [
        ("bc", "abcd", "bc", "bc", ""),
        ("bc", "abcd", "b", "b", "c"),
        ("bc", "abcd", "", "", "bc"),
        # Who is no member any more does not come back.
        ("bc", "abd", "b", "", ""),
        ("bcde", "abcde", "bcd", "bcd", ""),
        ("bcde", "abcde", "bc", "bc", "de"),
        ("bcde", "abcd", "bc", "bc", "d"),
        ("bcde", "abc", "bc", "bc", ""),
    ],
)
def test_who_is_asked_before_a_leader_is_forgotten_of_whose_confirms_a_majority_sufficed(
    synchronised: str, members: str, alive: str, running: str, silent: str
) -> None:
    record = placed("bcde", synchronised, majority=True)
    assert asked_without("a", record, members, alive) == PendingSurvey(tuple(running), tuple(silent))
    nobody = asked_without("a", placed("bcde", synchronised), members, alive)
    assert nobody == PendingSurvey((), ()), "each of them has everything"
