"""Of copies of a lost cluster's nodes the most complete one leads each queue, and what others have more is named."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.replication.cluster import LossyPromotion
from leveret.core.replication.rebuilding import DescribedCopy, DescribedLog, check, rebuilt
from leveret.model import definitions as d
from leveret.model.errors import PreconditionFailed

TERM = 1 << 32


def definitions(*queues: str) -> list[bytes]:
    found: list[d.AnyEntity] = [d.Vhost(name="/")]
    found += [d.Queue(vhost="/", name=name, epoch=number) for number, name in enumerate(queues, 1)]
    return [d.encode_change(d.Put(each)) for each in found]


def copy(name: str, logs: dict[int, tuple[Any, ...]], **given: Any) -> DescribedCopy:
    values: dict[str, Any] = {
        "node": name,
        "node_id": f"id-{name}",
        "cluster": "c1",
        "lacks": "",
        "changed_at_ms": 1,
        "definitions_at_ms": 1,
        "epoch_max": 7,
        "proof": "p",
        "definitions": definitions("q"),
        "logs": {epoch: DescribedLog(*log) for epoch, log in logs.items()},
    }
    return DescribedCopy(**values | given)


@pytest.mark.parametrize(
    ("logs", "leader", "term", "lost"),
    [
        # The end counts, and before that the term of the last chunk.
        ({"a": (TERM, 0, 10, True), "b": (TERM, 0, 12, True)}, "b", 2, None),
        ({"a": (3 * TERM, 0, 10, True), "b": (TERM, 0, 12, True)}, "a", 4, None),
        # Of equal ends, the copy that begins first.
        ({"a": (TERM, 5, 10, True), "b": (TERM, 2, 10, True)}, "b", 2, None),
        # A mirror that was not synchronised may lack the first messages: what it has more is named.
        ({"a": (TERM, 0, 10, True), "b": (TERM, 8, 12, False)}, "a", 2, LossyPromotion(2, 0, "b")),
        ({"a": (TERM, 0, 10, True), "b": (TERM, 8, 10, False)}, "a", 2, None),
        ({"b": (TERM, 8, 12, False)}, "b", 2, None),
    ],
)
def test_the_most_complete_copy_leads(
    logs: dict[str, tuple[Any, ...]], leader: str, term: int, lost: LossyPromotion | None
) -> None:
    copies = [copy(node, {1: logs[node]} if node in logs else {}) for node in ("a", "b", "c")]
    [queue] = rebuilt(copies).queues
    placement = queue.placement
    assert (placement.leader, placement.term, placement.lost) == (leader, term, lost)
    assert set(placement.stopped) == set(logs) - {leader}
    assert queue.copies[0] == leader
    assert not placement.mirrors


def test_queues_without_a_copy_begin_empty_and_are_spread_over_the_nodes() -> None:
    names = definitions("q", "r", "s", "t")
    copies = [copy(node, {}, definitions=names) for node in ("a", "b")]
    found = rebuilt(copies)
    assert [(queue.placement.leader, queue.copies) for queue in found.queues] == [("a", ()), ("b", ())] * 2
    assert found.epoch == 7


def test_the_newest_definitions_count() -> None:
    older = copy("a", {}, definitions=definitions("q", "gone"))
    newer = copy("b", {}, definitions_at_ms=2)
    found = rebuilt([older, newer])
    assert found.definitions_of == "b"
    assert [queue.key for queue in found.queues] == [("/", "q")]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"node": "a"}, "the same node name, a"),
        ({"node_id": "id-a"}, "the same data, id-a"),
        ({"cluster": "c2"}, "of different clusters: c1, c2"),
        ({"proof": "other"}, "another .replication_secret"),
        ({"lacks": "it was torn"}, "incomplete: it was torn; --force takes it"),
    ],
)
def test_copies_that_do_not_belong_together_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(PreconditionFailed, match=why):
        check([copy("a", {}), copy("b", {}, **given)], "p", force=False)


def test_incomplete_copies_are_taken_by_force() -> None:
    check([copy("a", {}, lacks="it was torn"), copy("b", {}, cluster="")], "p", force=True)
