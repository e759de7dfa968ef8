"""A node claims vhosts although the records of owners are younger than the archives."""

from __future__ import annotations

from typing import Any, cast

import pytest

from leveret.core.replication.vhost_owners import VhostOwner
from leveret.runtime.standby.archive import StandbyArchive
from leveret.runtime.standby.claims import VhostClaims
from leveret.runtime.standby.site import SiteParts, StandbySite

Owners = dict[str, VhostOwner]


class Site:
    """A cluster of n1, which claims, n2 and n3; n3 does not answer. `archived` are the vhosts in archives by node."""

    name = "n1"
    members = ("n1", "n2", "n3")

    def __init__(self, owners: Owners, *, is_shared: bool = False) -> None:
        self.owners = owners
        self.is_shared = is_shared
        self.archived: dict[str, list[str]] = {"n1": [], "n2": []}
        self.terms: dict[str, int] = {}
        self.asked = 0

    async def note(self, vhost: str, owner: VhostOwner) -> None:
        self.owners[vhost] = owner

    async def claimed_terms(self) -> dict[str, int]:
        self.asked += 1
        return self.terms

    async def of_those_that_answer(self, name: str) -> tuple[dict[str, Any], dict[str, str]]:
        assert name == "contents"
        self.asked += 1
        rows = {node: [{"vhost": vhost} for vhost in vhosts] for node, vhosts in self.archived.items()}
        return {node: {"vhosts": each} for node, each in rows.items()}, {}

    def claims(self) -> VhostClaims:
        return VhostClaims(cast(StandbySite, self), cast(SiteParts, self), cast(StandbyArchive, self))


async def test_a_vhosts_first_owner_notes_who_may_have_data_of_it() -> None:
    """A cluster that was rebuilt has no records of owners; a promotion read an empty archive and told nobody."""
    site = Site({"v": VhostOwner("n1", 1), "w": VhostOwner("n1", 1), "x": VhostOwner("n2", 1)})
    site.archived = {"n1": ["w"], "n2": ["v"], "n3": []}
    await site.claims().claim(["v", "w", "x", "gone"])
    assert site.owners == {
        "v": VhostOwner("n1", 1, claimed=1, beside=("n2",)),
        "w": VhostOwner("n1", 1, claimed=1),
        "x": VhostOwner("n2", 1),
    }
    await site.claims().claim(["v", "w", "x"])
    assert site.asked == 1, "all is claimed"


@pytest.mark.parametrize("answers", [["n1"], ["n1", "n2"]])
async def test_a_node_that_does_not_answer_may_have_data(answers: list[str]) -> None:
    site = Site({"v": VhostOwner("n1", 1)})
    site.archived = {node: [] for node in answers}
    await site.claims().claim(["v"])
    assert site.owners["v"].others == [name for name in ("n2", "n3") if name not in answers]


async def test_a_later_owner_asks_nobody() -> None:
    """The records of the owners before have the nodes with data."""
    site = Site({"v": VhostOwner("n1", 3, holder="n2")})
    await site.claims().claim(["v"])
    assert site.owners["v"] == VhostOwner("n1", 3, holder="n2", claimed=3, beside=("n1",))
    assert not site.asked


@pytest.mark.parametrize(("known", "term"), [({}, 1), ({"v": 1}, 2), ({"v": 4}, 5), ({"w": 9}, 1)])
async def test_an_owner_outranks_all_that_a_shared_archive_knows(known: dict[str, int], term: int) -> None:
    """A vhost that was deleted with its data and made again has owners from the first term on; the archive refused."""
    site = Site({"v": VhostOwner("n1", 1)}, is_shared=True)
    site.terms = known
    claims = site.claims()
    await claims.claim(["v"])
    assert site.owners["v"] == VhostOwner("n1", term, claimed=term)
    site.terms = {"v": 100}
    await claims.claim(["v"])
    await claims.outrank(["v"])
    assert site.owners["v"].term == term, "its own claim, and one of an owner after it"


async def test_a_recovery_outranks_too_and_claims_nothing_itself() -> None:
    site = Site({"v": VhostOwner("n1", 1, claimed=0), "w": VhostOwner("n2", 1)}, is_shared=True)
    site.terms = {"v": 7, "w": 7}
    await site.claims().outrank(["v", "w"])
    assert site.owners == {"v": VhostOwner("n1", 8), "w": VhostOwner("n2", 1)}
