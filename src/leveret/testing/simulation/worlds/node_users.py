"""The queues, the stream and the applications of a world whose clients all use one node at a time."""

from __future__ import annotations

from collections.abc import Callable

from leveret.testing.simulation.applications.consumers import ConsumingHabit
from leveret.testing.simulation.applications.publishers import PublishingPace
from leveret.testing.simulation.applications.users import Crew
from leveret.testing.simulation.worlds.world import SimulatedWorld

FANOUT_QUEUES = ("q1", "q2", "quorum", "s1")


async def employ(world: SimulatedWorld) -> None:
    """Declare queues and a stream, and start a choice of the users' applications, which differs between runs."""
    for queue in ("q1", "q2", "dead"):
        await world.declare(queue)
    await world.declare("quorum", x_queue_type="quorum")
    await world.declare("letters", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    stream = await world.declare_stream("s1")
    await world.operator.declare_fanout("fan", FANOUT_QUEUES)
    users, habits = world.users, world.habits
    steady, in_bursts = PublishingPace(habits.choice((0.02, 0.02, 0.05, 0.2))), PublishingPace(0.005, 30, 5.0)
    small = ConsumingHabit(0.5, 0.3, 0.1, prefetch=habits.choice((1, 3)))
    rejecting = ConsumingHabit(0.3, 0.2, 0.4, "dead")
    crews: list[Callable[[], Crew]] = [
        lambda: (users.publisher(("q1", "quorum"), steady), users.consumer("quorum"), users.consumer("q1")),
        lambda: (users.publisher(FANOUT_QUEUES, steady, exchange="fan"), users.reader(stream)),
        lambda: (users.publisher(("s1",), steady), users.reader(stream), users.reader(stream)),
        lambda: (users.numbering_publisher(stream, steady), users.storing_reader(stream)),
        lambda: (users.publisher(("q2",), in_bursts), users.consumer("q2", ConsumingHabit(1.0, 0.0))),
        lambda: (users.publisher(("q1", "q2", "quorum"), steady, in_transactions=True),),
        lambda: (
            users.publisher(("letters",), steady),
            users.consumer("letters", rejecting),
            users.consumer("dead", ConsumingHabit(0.5, 0.2)),
        ),
        lambda: (users.owner("own", 1.0), users.owner("ownquorum", 3.0, x_queue_type="quorum")),
        lambda: (users.consumer("q1", small), users.consumer("quorum", small)),
    ]
    world.employ(crews)
