"""A simulated cluster whose quorum queue keeps dead letters until a small mirrored queue has taken them.

The queue of the dead letters rejects publishes while it is full, so letters wait, and leaders of both queues move and
die meanwhile. No message may get lost, and none that was rejected for good may come to a consumer again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from leveret.testing.applications.stream_books import StreamBooks
from leveret.testing.simulation.applications.consumers import ConsumingHabit
from leveret.testing.simulation.applications.publishers import PublishingPace
from leveret.testing.simulation.applications.users import Crew
from leveret.testing.simulation.worlds.cluster import ClusterWorld

KEEPING: Final = "kletters"
SMALL: Final = "msmall"


class LettersWorld(ClusterWorld):
    """See the module."""

    def __init__(self, *args: Any, **given: Any) -> None:
        """Have no situation of other worlds, unless it is asked for."""
        super().__init__(*args, **given)
        self.often = given.get("often", "")

    async def declare_more(self) -> None:
        """See ClusterWorld."""
        await self.declare(
            KEEPING,
            x_queue_type="quorum",
            x_dead_letter_strategy="at-least-once",
            x_overflow="reject-publish",
            x_dead_letter_exchange="",
            x_dead_letter_routing_key=SMALL,
        )
        await self.declare(SMALL, x_max_length=10, x_overflow="reject-publish")

    def crews(
        self, stream: StreamBooks, steady: PublishingPace, small: ConsumingHabit
    ) -> list[Callable[[], Crew]]:
        """See ClusterWorld."""
        users = self.users
        rejecting = ConsumingHabit(0.2, 0.2, 0.5, SMALL, is_kept=True)
        return [
            lambda: (users.publisher((KEEPING,), steady), users.consumer(KEEPING, rejecting)),
            lambda: (users.consumer(SMALL, ConsumingHabit(0.6, 0.2)), users.consumer(KEEPING, rejecting)),
        ]
