"""The simulated companion of a lease, in the place of `runtime.coordination.companion.LeaseCompanion`.

Its process is a DeathWatcher of the node's process: the kernel reports the node's death to it, but not a loss of power,
in which the companion dies, too. A world kills the companion, or makes it hang, so that it ends the lease late or
never.
"""

from __future__ import annotations

from leveret.config.sections.etcd import EtcdOptions
from leveret.runtime.coordination.companion import STARTS_MAX
from leveret.testing.simulation.etcd.paths import Asker
from leveret.testing.simulation.etcd.server import SimulatedEtcd, etcd_here
from leveret.testing.simulation.machine.process import DeathWatcher, SimulatedProcess, current_process

_RETRY_S = 0.1


class SimulatedCompanion:
    """See the module."""

    def __init__(self, options: EtcdOptions, lease_id: int, ttl_s: float) -> None:
        """Start the companion of the present process. Raises LookupError: the context has no simulated etcd."""
        process = current_process()
        assert process is not None
        self._process = process
        self._etcd = etcd_here()
        self._asker = Asker(process, options.endpoints[0].url)
        self._lease_id, self._ttl_s = lease_id, ttl_s
        self._watcher: _CompanionProcess | None = None
        self._starts = 0

    def ensure_started(self) -> None:
        """See LeaseCompanion."""
        if (self._watcher is not None and self._watcher.is_alive) or self._starts == STARTS_MAX:
            return
        self._starts += 1
        self._watcher = _CompanionProcess(self._etcd, self._asker, self._lease_id, self._ttl_s)
        self._process.watchers.append(self._watcher)

    def release(self) -> None:
        """See LeaseCompanion."""
        if self._watcher is not None:
            self._watcher.is_alive = False


class _CompanionProcess(DeathWatcher):
    """The program of a companion."""

    def __init__(self, etcd: SimulatedEtcd, asker: Asker, lease_id: int, ttl_s: float) -> None:
        super().__init__()
        self._etcd, self._asker, self._lease_id, self._ttl_s = etcd, asker, lease_id, ttl_s
        self._until_s: float | None = None

    def noticed(self) -> None:
        """See DeathWatcher."""
        self._etcd.paths.after(self.hangs_s + self._etcd.paths.delay_s(), self._try)

    def _try(self) -> None:
        paths = self._etcd.paths
        if self._until_s is None:
            self._until_s = paths.now_s() + self._ttl_s
        if self.is_alive and paths.now_s() <= self._until_s and self._lease_id in self._etcd.state.leases:
            self._etcd.ask(self._asker, lambda: self._etcd.revoke(self._lease_id))
            paths.after(_RETRY_S, self._try)


def kill_companions(process: SimulatedProcess) -> None:
    """Kill the companions of a process, as an OOM killer may."""
    for watcher in process.watchers:
        watcher.is_alive = False


def hang_companions(process: SimulatedProcess, hangs_s: float) -> None:
    """Delay the companions' notice of a process's death: the node's next run may be up by then."""
    for watcher in process.watchers:
        watcher.hangs_s = hangs_s
