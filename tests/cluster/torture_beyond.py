"""Followers beyond a tortured cluster: of its nodes, one of them delayed, and of such a follower.

beyond   follows the first node, and passes clients on to it (`replication.proxy`)
delayed  follows the second node, and applies what it does `DELAY_S` later
last     follows `beyond`
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from leveret.testing.applications.compare import Comparison, compare
from leveret.testing.network.ports import NotReady, wait_until
from leveret.testing.sites.cluster_site import SiteNode
from tests.cluster.beyond import Beyond
from tests.e2e.site import PATIENCE_S

DELAY_S: Final = 3


class Outpost:
    """One follower.

    Attributes:
        node: the follower.
        followed: the node that it follows.
    """

    def __init__(
        self, name: str, folder: Path, followed: SiteNode | Beyond, settings: Mapping[str, str] | None = None
    ) -> None:
        """It does not run yet."""
        self.node = Beyond(name, folder, dict(settings or {}))
        self.followed = followed

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.node.node.alive

    def start(self) -> None:
        """Start it, unless it runs."""
        if not self.alive:
            self.node.follow(self.followed, secret=not self.node.data_dir.exists())

    def kill9(self) -> None:
        """End it as a crash would, if it runs."""
        if self.alive:
            self.node.node.kill9()

    def begin_anew(self) -> None:
        """Its node was replaced by one without anything: so is the copy."""
        self.kill9()
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
            raise AssertionError(f"{self.node.name} differs from {self.followed.name}: {found}") from None
        return found


class Outposts:
    """All of them.

    Attributes:
        beyond: the one that passes clients on.
        every: each behind the one that it follows.
    """

    def __init__(self, first: SiteNode, second: SiteNode, folder: Path) -> None:
        """None runs yet."""
        self.beyond = Outpost("beyond", folder, first, {"replication.proxy": "true"})
        delayed = Outpost("delayed", folder, second, {"replication.apply_delay": f"{DELAY_S}s"})
        self.every = (self.beyond, delayed, Outpost("last", folder, self.beyond.node))

    def start(self) -> None:
        """Start those that do not run."""
        for each in self.every:
            each.start()

    def heal(self) -> None:
        """Let everything pass again."""
        for each in self.every:
            each.node.link.heal()

    def replaced(self, node: SiteNode) -> None:
        """A node was replaced by one without anything: all copies that come from it begin anew."""
        gone: list[SiteNode | Beyond] = [node]
        for each in self.every:
            if each.followed in gone:
                each.begin_anew()
                gone.append(each.node)

    def judge(self) -> int:
        """Compare each with its node; return the number of compared logs. Raises AssertionError."""
        return sum(each.judge().logs for each in self.every)

    def close(self) -> None:
        """End all."""
        for each in reversed(self.every):
            each.node.close()
