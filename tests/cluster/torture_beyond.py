"""A follower of a tortured cluster's first node, which also passes clients on to it (`replication.proxy`)."""

from __future__ import annotations

from pathlib import Path

from leveret.testing.applications.compare import Comparison, compare
from leveret.testing.network.ports import NotReady, wait_until
from leveret.testing.sites.cluster_site import SiteNode
from tests.cluster.beyond import Beyond
from tests.e2e.site import PATIENCE_S

SETTINGS = {"replication.proxy": "true"}


class Outpost:
    """See the module.

    Attributes:
        node: the follower.
        followed: the node that it follows.
    """

    def __init__(self, followed: SiteNode, folder: Path) -> None:
        """It does not run yet."""
        self.node = Beyond("beyond", folder, SETTINGS)
        self.followed = followed

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.node.node.alive

    def start(self) -> None:
        """Start it, unless it runs."""
        if not self.alive:
            self.node.follow(self.followed, secret=not self.node.data_dir.exists())

    def begin_anew(self) -> None:
        """Its node was replaced by one without anything: so is the copy."""
        if self.alive:
            self.node.node.kill9()
        self.node.wipe()

    def judge(self) -> Comparison:
        """Compare it with its node once it has everything; both rest.

        Raises:
            AssertionError: they differ.
        """
        self.node.wait_even_with(self.followed)
        found = Comparison()

        def is_identical() -> bool:
            nonlocal found
            try:
                found = compare(self.followed.data_dir, self.node.data_dir)
            except (OSError, AssertionError):
                # A segment was renamed or dropped meanwhile.
                return False
            return found.is_identical

        try:
            wait_until(is_identical, "a copy that is its node's data", 2 * PATIENCE_S)
        except NotReady:
            raise AssertionError(f"the follower differs from {self.followed.name}: {found}") from None
        return found

    def close(self) -> None:
        """End it."""
        self.node.close()
