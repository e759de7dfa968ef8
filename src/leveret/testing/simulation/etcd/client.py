"""The client of a simulated etcd, in the place of `runtime.coordination.etcd.Etcd`, with its results and errors."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

from leveret.config.uris import EtcdEndpoint
from leveret.core.replication.election import StoreTransaction
from leveret.runtime.coordination.etcd import (
    EtcdRefused,
    EtcdUnreachable,
    GrantedLease,
    Snapshot,
    WatchEvents,
)
from leveret.runtime.coordination.etcd_wire import words
from leveret.testing.simulation.etcd.paths import Asker
from leveret.testing.simulation.etcd.server import EtcdWatch, SimulatedEtcd, etcd_here
from leveret.testing.simulation.etcd.state import NOT_FOUND
from leveret.testing.simulation.machine.process import current_process

Answer = TypeVar("Answer")


class SimulatedEtcdClient:
    """Sends requests to the etcd of its simulation, as the process that made the client; see `Etcd` for its methods.

    Attributes:
        endpoint: the endpoint that the next request goes to first.
    """

    def __init__(
        self,
        endpoints: Sequence[EtcdEndpoint],
        attempt_timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Send no request yet. Raises LookupError: the context has no simulated etcd."""
        self.endpoint = endpoints[0]
        self._endpoints = list(endpoints)
        self._attempt_timeout_s = attempt_timeout_s
        self._etcd: SimulatedEtcd = etcd_here()
        self._process = current_process()

    async def close(self) -> None:
        """Do nothing: requests under way have their own timeouts."""

    async def read(self, prefix: str) -> Snapshot:
        """Return all keys that begin with `prefix`, of one revision, in one page."""
        return await self._call(lambda: self._etcd.read(prefix))

    async def transact(self, transaction: StoreTransaction, lease_id: int = 0) -> int | None:
        """Carry out the writes if all conditions hold; return the revision, None if a condition did not hold."""
        self._etcd.on_request(transaction)
        return await self._call(lambda: self._etcd.transact(transaction, lease_id))

    async def grant(self, ttl_s: int) -> GrantedLease:
        """Request a new lease."""
        return await self._call(lambda: self._etcd.grant(ttl_s))

    async def keep_alive(self, lease_id: int) -> int:
        """Renew a lease; return the seconds that it lasts from now, 0 if it is over."""
        return await self._call(lambda: self._etcd.keep_alive(lease_id))

    async def revoke(self, lease_id: int) -> None:
        """End a lease; an expired one is no error."""
        try:
            await self._call(lambda: self._etcd.revoke(lease_id))
        except EtcdRefused as error:
            if error.code != NOT_FOUND:
                raise

    async def compact(self, revision: int) -> None:
        """Have etcd forget the revisions before one."""
        await self._call(lambda: self._etcd.compact(revision))

    async def watch(self, prefix: str, revision: int) -> AsyncGenerator[WatchEvents, None]:
        """Yield the events of keys under `prefix` after `revision`, in order and without gaps, for ever."""
        endpoint = self.endpoint
        watch = EtcdWatch(Asker(self._process, endpoint.url), prefix, max(1, revision))
        try:
            await self._attempt(endpoint, lambda: self._etcd.open_watch(watch))
            while True:
                found = await watch.inbox.get()
                if isinstance(found, Exception):
                    raise found
                if found.revision > revision:
                    yield found
        except OSError as error:
            raise EtcdUnreachable(f"etcd at {endpoint}: {words(error)}") from error
        finally:
            self._etcd.close_watch(watch)

    async def _call(self, work: Callable[[], Answer]) -> Answer:
        """Send a request to one endpoint after the other; the first answer counts."""
        failures: list[str] = []
        begin = self._endpoints.index(self.endpoint)
        for endpoint in self._endpoints[begin:] + self._endpoints[:begin]:
            self.endpoint = endpoint
            try:
                return await self._attempt(endpoint, work)
            except OSError as error:
                failures.append(f"{endpoint} ({words(error)})")
        raise EtcdUnreachable(f"no endpoint of etcd answers: {', '.join(failures)}")

    async def _attempt(self, endpoint: EtcdEndpoint, work: Callable[[], Answer]) -> Answer:
        """Wait for one endpoint's answer, up to its time limit. Raises OSError: there is no answer."""
        async with asyncio.timeout(self._attempt_timeout_s):
            answer = await self._etcd.ask(Asker(self._process, endpoint.url), work)
        if isinstance(answer, Exception):
            raise answer
        found: Answer = answer
        return found
