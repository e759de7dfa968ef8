"""A simulated node: a process of the simulation that runs `leveret serve` without its HTTP listener."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Final

from leveret.config import Config, build, gather
from leveret.model.errors import LeveretError
from leveret.runtime.roles.operations import ReplicationCommands
from leveret.runtime.roles.roles import Roles
from leveret.testing.simulation.machine.disk import SimulatedDisk
from leveret.testing.simulation.machine.loop import virtual_loop
from leveret.testing.simulation.machine.network import SimulatedNetwork
from leveret.testing.simulation.machine.process import SimulatedProcess
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.small_logs import SEGMENT_BYTES

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.02
_STOP_TIMEOUT_S: Final = 300.0


class SimulatedNode:
    """See the module.

    Attributes:
        name: its host in the network.
        amqp_port, stream_port: the ports of its listeners for clients.
        data_dir: its present data directory; each kill moves to another one.
        process: the present run; None while the node is down.
        roles: the node life cycle of the present run; None before it has begun.
        ended: the reason why the last run ended by itself; None while it runs or was ended from outside.
        clock_offset_s, clock_rate: the offset and the speed of its clocks, from the next start on.
        disk_delay_s: see SimulatedProcess; of the present run and of later ones.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        network: SimulatedNetwork,
        disk: SimulatedDisk,
        settings: Mapping[str, str],
        *,
        has_small_logs: bool = False,
    ) -> None:
        """Make a node that does not run; for small logs see nodes.small_logs."""
        self.name = name
        self.network = network
        self.amqp_port = network.free_port()
        self.stream_port = network.free_port()
        self.process: SimulatedProcess | None = None
        self.roles: Roles | None = None
        self.ended: str | None = None
        self.clock_offset_s = 0.0
        self.clock_rate = 1.0
        self._disk_delay_s = 0.0
        self._folder = folder
        self._disk = disk
        self._run = 0
        self.data_dir = folder / name / "0"
        self._settings = {
            "nodename": self.full_name,
            "disk_reserve": "0",
            "listeners.tcp.default": f"127.0.0.1:{self.amqp_port}",
            "stream.listeners.tcp.default": f"127.0.0.1:{self.stream_port}",
            **settings,
        }
        self._has_small_logs = has_small_logs
        self._killed: list[SimulatedProcess] = []
        self._stopping: list[SimulatedProcess] = []
        self._serving: asyncio.Task[None] | None = None

    @property
    def full_name(self) -> str:
        """Its name in statuses, and in etcd's records."""
        return f"{self.name}@localhost"

    @cached_property
    def config(self) -> Config:
        """The node's settings, which no run changes."""
        config = build(gather(overrides=self._settings))
        if self._has_small_logs:
            # Smaller than a setting may be.
            return replace(config, storage=replace(config.storage, segment_bytes_max=SEGMENT_BYTES))
        return config

    @property
    def disk_delay_s(self) -> float:
        """See the class."""
        return self._disk_delay_s

    @disk_delay_s.setter
    def disk_delay_s(self, delay_s: float) -> None:
        self._disk_delay_s = delay_s
        if self.process is not None:
            self.process.disk_delay_s = delay_s

    @property
    def is_up(self) -> bool:
        """Whether the node's process runs."""
        return self.process is not None

    @property
    def is_open(self) -> bool:
        """Whether clients can connect."""
        roles = self.roles if self.process is not None else None
        return roles is not None and hasattr(roles, "node") and roles.node.is_open

    @property
    def bug(self) -> BaseException | None:
        """An error of the last run that shows a bug; None without one."""
        serving = self._serving
        if serving is None or not serving.done() or serving.cancelled():
            return None
        return serving.exception()

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self.is_up:
            return
        self.process = SimulatedProcess(self.name)
        self.process.clock_offset_s, self.process.clock_rate = self.clock_offset_s, self.clock_rate
        self.process.disk_delay_s = self.disk_delay_s
        self.roles = self.ended = None
        self._serving = self.process.spawn(self._serve(self.process))

    async def _serve(self, process: SimulatedProcess) -> None:
        reason = "failed"
        try:
            self.roles = roles = Roles(self.config, self.data_dir, ReplicationCommands)
            await roles.start()
            await roles.failed.wait()
        except (LeveretError, OSError) as error:
            reason = f"{type(error).__name__}: {error}"
            logger.critical("simulated_node_ended node=%s error=%s", self.name, reason)
        if self.process is process:
            self.ended = reason
            self.kill()

    async def stop(self) -> None:
        """End the process in order, as SIGTERM does."""
        process = self.process
        if process is None or process in self._stopping:
            return
        self._stopping.append(process)
        assert self._serving is not None
        self._serving.cancel()
        if self.roles is not None:
            stopping = process.spawn(self.roles.stop())
            await wait_until(lambda: stopping.done() or not process.is_alive, _STOP_TIMEOUT_S, _LOOK_S)
            if not process.is_alive:
                return  # Another fault has ended it meanwhile.
            stopping.result()
        self.process = None
        process.kill()
        self.network.process_ended(process)
        self._killed.append(process)

    def kill(self) -> None:
        """End the process at once, as `kill -9` does: files stay unchanged, the kernel closes the sockets."""
        before = self._end(silently=False)
        if before is not None:
            self._disk.copy(before, self.data_dir)
            self._disk.remove(before)

    def lose_power(self, chance: Random) -> None:
        """End with the machine: sockets send no reset; synced files and names stay, and any part of the others."""
        before = self._end(silently=True)
        if before is not None:
            self._disk.power_lost(before, self.data_dir, chance)
            self._disk.remove(before)

    def _end(self, *, silently: bool) -> Path | None:
        """End the process; return its data directory, None if it did not run. The next run gets another directory."""
        process, self.process = self.process, None
        if process is None:
            return None
        process.kill()
        if not silently:
            process.report_death()
        self.network.process_ended(process, silently=silently)
        self._killed.append(process)
        self._run += 1
        before, self.data_dir = self.data_dir, self._folder / self.name / str(self._run)
        return before

    def pause(self) -> None:
        """Pause the process, as SIGSTOP does."""
        if self.process is not None:
            self.process.pause()

    def resume(self) -> None:
        """Resume the process, as SIGCONT does."""
        if self.process is not None:
            virtual_loop().resume(self.process)

    def discard(self) -> None:
        """Free the coroutines of killed runs."""
        for process in self._killed:
            process.discard()
        self._killed.clear()
