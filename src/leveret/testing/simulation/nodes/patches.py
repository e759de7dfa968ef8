"""The edges of the product that a simulation replaces for its duration."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from random import Random
from typing import Any, Final
from unittest import mock

from leveret.storage.dirty_memory import DIRTY_BYTES_MAX
from leveret.testing.simulation.etcd.client import SimulatedEtcdClient
from leveret.testing.simulation.etcd.companion import SimulatedCompanion
from leveret.testing.simulation.machine.loop import SimulatedExecutor, SimulatedSyncThreads, VirtualLoop
from leveret.testing.simulation.machine.network import SimulatedAcceptor, simulated_listen
from leveret.testing.simulation.machine.process import current_process

EPOCH_S: Final = 1_800_000_000.0
"""The wall clock at the begin of a run."""
_BOOTED_S: Final = 10_000.0
_LISTENERS: Final = (
    "leveret.runtime.sockets.listening",
    "leveret.runtime.link.listening",
)
_THREADS: Final = (
    "leveret.runtime.logs.commit",
    "leveret.runtime.collecting.outgoing_sync",
    "leveret.runtime.integrity.scrubbing",
)

_CLOCKS_BY_NAME: Final = {
    "leveret.runtime.logs.engine": ("monotonic",),
    "leveret.runtime.schema_sync.schema_sync": ("monotonic", "time"),
    "leveret.runtime.schema_sync.downstream": ("time",),
}
_DIRTY_BYTES: Final = (0, 0, 0, 2 * DIRTY_BYTES_MAX)
"""What a sync of the whole file system would have to write, at a moment."""
_ETCD: Final = ("leveret.runtime.cluster.membership.store", "leveret.runtime.coordination.election")


@contextmanager
def simulated(loop: VirtualLoop, rng: Random) -> Iterator[None]:
    """Replace clocks, chance, threads and listening sockets of the product by those of the simulation."""
    with ExitStack() as patches:

        def replace(target: str, by: Any) -> None:
            patches.enter_context(mock.patch(target, by))

        for name, clock in _clocks(loop).items():
            replace(f"time.{name}", clock)
        for module, names in _CLOCKS_BY_NAME.items():
            for name in names:
                replace(f"{module}.{name}", _clocks(loop)[name])
        replace("os.urandom", rng.randbytes)
        replace("random._urandom", rng.randbytes)
        for module in _LISTENERS:
            replace(f"{module}.Acceptor", SimulatedAcceptor)
            replace(f"{module}.listen", simulated_listen)
        for module in _THREADS:
            replace(f"{module}.ThreadPoolExecutor", SimulatedExecutor)
        replace("leveret.runtime.logs.commit.SyncThreads", SimulatedSyncThreads)
        replace("leveret.runtime.node.node.open_kernel_syncs", lambda: None)
        for module in _ETCD:
            replace(f"{module}.Etcd", SimulatedEtcdClient)
        replace("leveret.runtime.coordination.lease.LeaseCompanion", SimulatedCompanion)
        replace("leveret.runtime.process.loop_watch.LoopWatch.run", _watch_nothing)
        replace("leveret.runtime.node.node.keep_freed_memory", lambda: None)
        replace("leveret.runtime.node.node.freeze_objects", lambda: None)
        replace("leveret.runtime.node.node.gc", mock.Mock())
        # The system's own figure changes with the work of other programs.
        dirty = Random(f"dirty {rng.random()}")
        replace("leveret.storage.dirty_memory.dirty_bytes", lambda memory: dirty.choice(_DIRTY_BYTES))
        # The numbers are in names of files, and the disk goes by the order of names.
        replace("leveret.storage.removed._numbers", count())
        state = random.getstate()
        random.seed(rng.random())
        patches.callback(random.setstate, state)
        yield


def _clocks(loop: VirtualLoop) -> dict[str, Callable[..., float | int]]:
    """Return clocks that apply the offset and the rate of the calling process."""

    def elapsed_s() -> float:
        process = current_process()
        rate = 1.0 if process is None else process.clock_rate
        return _BOOTED_S + loop.time() * rate

    def wall_s() -> float:
        process = current_process()
        offset_s = 0.0 if process is None else process.clock_offset_s
        return EPOCH_S - _BOOTED_S + elapsed_s() + offset_s

    return {
        "time": wall_s,
        "time_ns": lambda: int(wall_s() * 1e9),
        "monotonic": elapsed_s,
        "monotonic_ns": lambda: int(elapsed_s() * 1e9),
        "perf_counter": elapsed_s,
        "clock_gettime": lambda clock: elapsed_s(),
    }


async def _watch_nothing(self: object) -> None:
    """Replace the loop's watch: a simulated loop is never held up."""
    await asyncio.get_running_loop().create_future()
