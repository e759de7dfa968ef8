"""A simulated process: all callbacks of one node run in its context, and stop for good when it is killed."""

from __future__ import annotations

from contextvars import ContextVar

_current: ContextVar[SimulatedProcess | None] = ContextVar("leveret_simulated_process", default=None)


class SimulatedProcess:
    """One process of the simulation: a run of a node from its start to its end, or a client.

    Attributes:
        name: of the node or client; the host of its sockets.
        is_alive: whether its callbacks still run.
        is_paused: whether they wait, as those of a stopped process.
        clock_offset_s: difference of its clocks to the simulation's.
        clock_rate: speed of its clocks, 1 for the simulation's.
    """

    def __init__(self, name: str) -> None:
        """A process that runs."""
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.clock_offset_s = 0.0
        self.clock_rate = 1.0


def current_process() -> SimulatedProcess | None:
    """Return the process whose callback runs now; None for the simulation's own."""
    return _current.get()
