"""Owners of a downstream cluster's vhosts: tables of what is written when nodes and vhosts come and go."""

from __future__ import annotations

from random import Random

import pytest

from leveret.core.replication.vhost_owners import SiteNodes, VhostOwner, next_owners
from tests.seeds import seeds

A, B, C = "a", "b", "c"
Owners = dict[str, VhostOwner]


def nodes(running: str, *, members: str = "abc", balanced: bool = True) -> SiteNodes:
    return SiteNodes([*members], [*running], balanced)


def shared(running: str) -> SiteNodes:
    return SiteNodes([*"abc"], [*running], share_archive=True)


@pytest.mark.parametrize(
    ("name", "vhosts", "owners", "view", "written"),
    [
        (
            "the first owners are spread evenly, in the order of joining",
            "wxyz",
            {},
            nodes("abc"),
            {"w": VhostOwner(A, 1), "x": VhostOwner(B, 1), "y": VhostOwner(C, 1), "z": VhostOwner(A, 1)},
        ),
        ("without a running node nothing is written", "w", {}, nodes(""), {}),
        (
            "an owner that runs stays",
            "wx",
            {"w": VhostOwner(A, 1, claimed=1), "x": VhostOwner(B, 3, claimed=3)},
            nodes("ab"),
            {},
        ),
        (
            "the data of a lost owner stay its own, and another node owns the vhost in a higher term",
            "w",
            {"w": VhostOwner(A, 4, claimed=4)},
            nodes("bc"),
            {"w": VhostOwner(B, 5, holder=A)},
        ),
        (
            "what its records are of is known to the next owner",
            "w",
            {"w": VhostOwner(A, 4, claimed=4, origins={"w": 7})},
            nodes("bc"),
            {"w": VhostOwner(B, 5, holder=A, origins={"w": 7})},
        ),
        (
            "and to the holder when it owns the vhost again",
            "w",
            {"w": VhostOwner(B, 5, holder=A, claimed=5, origins={"w": 7})},
            nodes("ac"),
            {"w": VhostOwner(A, 6, claimed=5, origins={"w": 7})},
        ),
        (
            "of the records of a forgotten holder nothing is expected any more",
            "w",
            {"w": VhostOwner(B, 5, holder=A, origins={"w": 7})},
            nodes("bc", members="bc"),
            {"w": VhostOwner(B, 5)},
        ),
        (
            "nor of those of a forgotten owner",
            "w",
            {"w": VhostOwner(A, 4, claimed=4, origins={"w": 7})},
            nodes("bc", members="bc"),
            {"w": VhostOwner(B, 5)},
        ),
        (
            "a lost owner that transferred nothing holds nothing",
            "w",
            {"w": VhostOwner(A, 4)},
            nodes("bc"),
            {"w": VhostOwner(B, 5)},
        ),
        (
            "a holder that runs is the owner after a lost one",
            "w",
            {"w": VhostOwner(B, 5, holder=A)},
            nodes("ac"),
            {"w": VhostOwner(A, 6, claimed=5)},
        ),
        (
            "a holder that does not run still holds when the next owner is lost",
            "w",
            {"w": VhostOwner(B, 5, holder=A, claimed=5)},
            nodes("c"),
            {"w": VhostOwner(C, 6, holder=A)},
        ),
        (
            "a forgotten holder holds nothing",
            "w",
            {"w": VhostOwner(B, 5, holder=A)},
            nodes("bc", members="bc"),
            {"w": VhostOwner(B, 5)},
        ),
        (
            "what a lost owner transferred beside the holder is not forgotten when the holder owns the vhost again",
            "w",
            {"w": VhostOwner(B, 5, holder=A, claimed=5, beside=(B,))},
            nodes("ac"),
            {"w": VhostOwner(A, 6, claimed=5, beside=(B,))},
        ),
        (
            "nor when a third node does",
            "w",
            {"w": VhostOwner(B, 5, holder=A, claimed=5, beside=(B,))},
            nodes("c"),
            {"w": VhostOwner(C, 6, holder=A, beside=(B,))},
        ),
        (
            "a forgotten node has nothing beside the holder",
            "w",
            {"w": VhostOwner(A, 6, claimed=6, beside=(B, C))},
            nodes("ac", members="ac"),
            {"w": VhostOwner(A, 6, claimed=6, beside=(C,))},
        ),
        (
            "what nodes had beside each other before the archive was shared is transferred again",
            "w",
            {"w": VhostOwner(A, 6, claimed=6, beside=(B,))},
            shared("abc"),
            {"w": VhostOwner(A, 6, claimed=6)},
        ),
        (
            "a forgotten owner holds nothing",
            "w",
            {"w": VhostOwner(A, 4, claimed=4)},
            nodes("bc", members="bc"),
            {"w": VhostOwner(B, 5)},
        ),
        (
            "of a shared archive nobody is the holder: the next owner goes on where it stands",
            "w",
            {"w": VhostOwner(A, 4, claimed=4)},
            shared("bc"),
            {"w": VhostOwner(B, 5, claimed=4)},
        ),
        (
            "a shared archive lets vhosts move on before the last move has settled",
            "wxy",
            {vhost: VhostOwner(A, 2, claimed=1) for vhost in "wxy"},
            shared("ab"),
            {"y": VhostOwner(B, 3, claimed=1)},
        ),
        (
            "what a holder had before the archive was shared is transferred again",
            "w",
            {"w": VhostOwner(B, 5, holder=A)},
            shared("abc"),
            {"w": VhostOwner(B, 5)},
        ),
        (
            "vhosts move to a node that came, the last ones first",
            "wxyz",
            {vhost: VhostOwner(A, 1) for vhost in "wxyz"},
            nodes("ab"),
            {"z": VhostOwner(B, 2), "y": VhostOwner(B, 2)},
        ),
        (
            "a node that gives a vhost away holds its data until the other one has them",
            "wx",
            {vhost: VhostOwner(A, 1, claimed=1) for vhost in "wx"},
            nodes("ab"),
            {"x": VhostOwner(B, 2, holder=A)},
        ),
        (
            "a vhost that is being taken over does not move again",
            "wxy",
            {
                "w": VhostOwner(A, 2, holder=B),
                "x": VhostOwner(A, 2, holder=B),
                "y": VhostOwner(A, 2, holder=B),
            },
            nodes("ab"),
            {},
        ),
        (
            "during a promotion nothing moves but the vhosts of lost nodes",
            "wxyz",
            {**{vhost: VhostOwner(A, 1, claimed=1) for vhost in "wxy"}, "z": VhostOwner(C, 1, claimed=1)},
            nodes("ab", balanced=False),
            {"z": VhostOwner(B, 2, holder=C)},
        ),
        (
            "a vhost that is replicated no more keeps its record, and moves with a loss, because its data are there",
            "",
            {"w": VhostOwner(A, 4, claimed=4)},
            nodes("b"),
            {"w": VhostOwner(B, 5, holder=A)},
        ),
        (
            "a vhost that is replicated no more weighs nothing",
            "x",
            {"w": VhostOwner(A, 1, claimed=1)},
            nodes("ab"),
            {"x": VhostOwner(A, 1)},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_owners(name: str, vhosts: str, owners: Owners, view: SiteNodes, written: Owners) -> None:
    assert next_owners([*vhosts], owners, view) == written


def test_an_owner_is_noted_beside_the_holder_before_it_transfers_and_until_it_has_everything() -> None:
    owner = VhostOwner(B, 5, holder=A)
    claimed = owner.claims()
    assert claimed == VhostOwner(B, 5, holder=A, claimed=5, beside=(B,))
    assert (owner.others, claimed.others, claimed.claims()) == ([], [B], claimed)
    assert claimed.takes_over() == VhostOwner(B, 5, claimed=5, beside=(B, A))
    assert claimed.takes_over().others == [A]
    assert claimed.recovered_by(B) == claimed.takes_over()
    assert claimed.takes_over().recovered_by(A) == VhostOwner(B, 5, holder=A, claimed=5, beside=(B, A))
    assert claimed.has_all() == VhostOwner(B, 5, claimed=5)
    assert VhostOwner(B, 5).claims() == VhostOwner(B, 5, claimed=5), "nobody else has data"
    forgotten = VhostOwner(B, 5, claimed=5, beside=(B, C))
    assert forgotten.others == [C], "its own archive is the one that a promotion reads"


@pytest.mark.parametrize("seed", seeds(200, each_time=40))
def test_whatever_comes_and_goes_data_have_one_place_and_owners_are_even_at_last(seed: int) -> None:
    """Nodes come, go, and are forgotten; owners transfer, and take over; after each step every vhost has one owner.

    `data` is where a vhost's data are: nobody else recovers them, unless their node was forgotten.
    """
    random, owners, data = Random(seed), dict[str, VhostOwner](), dict[str, str]()
    members, running = ["a", "b", "c"], {"a", "b", "c"}
    vhosts = {f"v{number}" for number in range(random.randrange(1, 12))}
    for _ in range(60):
        step = random.choice(["lose", "come", "forget", "join", "store", "store", "take", "take"])
        if step == "lose" and len(running) > 1:
            running.discard(random.choice(sorted(running)))
        elif step == "come":
            running.add(random.choice(members))
        elif step == "forget" and len(members) > len(running):
            gone = random.choice(sorted(set(members) - running))
            members.remove(gone)
            data = {vhost: node for vhost, node in data.items() if node != gone}
        elif step == "join" and len(members) < 6:
            members.append(name := f"n{random.random()}")
            running.add(name)
        terms = {vhost: owner.term for vhost, owner in owners.items()}
        for vhost, owner in owners.items():
            if owner.node not in running:
                continue
            if step == "store" and random.random() < 0.5:
                owners[vhost] = VhostOwner(owner.node, owner.term, owner.holder, owner.term)
                data.setdefault(vhost, owner.recoverer)
            if step == "take" and owner.holder and random.random() < 0.5:
                owners[vhost] = VhostOwner(owner.node, owner.term, "", owner.term)
                data[vhost] = owner.node
        before = dict(owners)
        owners |= next_owners(vhosts, owners, SiteNodes(members, running))
        assert all(owners[vhost].node in running for vhost in vhosts), seed
        assert all(
            owners[vhost].term > terms[vhost] for vhost in terms if owners[vhost].node != before[vhost].node
        )
        assert all(owners[vhost].recoverer == node for vhost, node in data.items()), seed
    while changes := next_owners(vhosts, owners, SiteNodes(members, running)):
        # Each new owner has everything.
        owners |= {
            vhost: VhostOwner(owner.node, owner.term, "", owner.term) for vhost, owner in changes.items()
        }
    loads = [sum(owners[vhost].node == node for vhost in vhosts) for node in running]
    is_movable = not any(owners[vhost].holder for vhost in vhosts)
    assert max(loads) - min(loads) <= 1 or not is_movable, seed
