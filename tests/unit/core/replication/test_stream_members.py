"""core.replication.stream_members: where the copies of a stream are, as nodes come and go and operators decide."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from leveret.core.replication.cluster import Placement
from leveret.core.replication.stream_members import (
    first_members,
    present_members,
    with_member,
    without_member,
)
from leveret.model.errors import NotFound, PreconditionFailed

WHERE = "stream 's' in vhost '/'"


def in_order(nodes: Sequence[str]) -> Sequence[str]:
    return nodes


def placed(members: str, copies: int = 0) -> Placement:
    return Placement(7, members[:1] or "a", "a1", 1, members=tuple(members), copies=copies)


@pytest.mark.parametrize(
    ("copies", "serving", "members"),
    [(1, "abc", "b"), (2, "bc", "bc"), (3, "abc", "bac"), (3, "bc", "bca"), (5, "abc", "bac")],
)
def test_a_new_stream_has_its_leader_first_and_nodes_that_run_before_others(
    copies: int, serving: str, members: str
) -> None:
    assert first_members("b", copies, "abc", serving, in_order) == tuple(members)


@pytest.mark.parametrize(
    ("members", "copies", "cluster", "alive", "present"),
    [
        # A member that does not run keeps its place.
        ("abc", 3, "abcd", "abd", "abc"),
        # One that was forgotten is replaced; and nodes that join become members until there are enough.
        ("abc", 3, "abd", "abd", "abd"),
        ("ab", 4, "abcde", "abde", "abde"),
        ("ab", 2, "abc", "abc", "ab"),
        # A record from before streams had mirrors.
        ("", 0, "abc", "abc", "abc"),
    ],
)
def test_members_stay_and_are_filled_up_to_the_wanted_number(
    members: str, copies: int, cluster: str, alive: str, present: str
) -> None:
    assert present_members(placed(members, copies), 3, cluster, alive) == tuple(present)


def test_operators_add_and_delete_members_and_no_other_node_comes_in_for_a_deleted_one() -> None:
    added = with_member(placed("ab", 2), "c", WHERE)
    assert (added.members, added.copies) == (("a", "b", "c"), 3)
    deleted = without_member(added, "a", WHERE)
    assert (deleted.members, deleted.copies) == (("b", "c"), 2)
    assert present_members(deleted, 5, "abcd", "abcd") == ("b", "c")
    with pytest.raises(PreconditionFailed, match="node 'a' already has a replica"):
        with_member(placed("ab"), "a", WHERE)
    with pytest.raises(NotFound, match="node 'c' has no replica"):
        without_member(placed("ab"), "c", WHERE)
    with pytest.raises(PreconditionFailed, match="has the last replica"):
        without_member(placed("a"), "a", WHERE)
