"""A simulated world: nodes, applications with books, and faults that a seed decides; then a healed end and a count.

    report = ClusterWorld(seed=7, folder=folder).run(seconds=60)

Raises RunFailure, with the story, if the books do not balance, or if the world does not come to rest after all faults
have healed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import Context, copy_context
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, cast

from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.queue import Queue
from leveret.core.replication.election import StoreTransaction
from leveret.storage.secret_file import SECRET_FILE
from leveret.testing.applications.run_books import BooksFault, RunBooks
from leveret.testing.applications.stream_books import StreamBooks
from leveret.testing.simulation.applications.application import SimulatedApplication
from leveret.testing.simulation.applications.client import SimulatedClient
from leveret.testing.simulation.applications.operator import NeverConverged, SimulatedOperator
from leveret.testing.simulation.applications.publishers import FAST_COPIES, PublishingPace
from leveret.testing.simulation.applications.queue_owner import SimulatedQueueOwner
from leveret.testing.simulation.applications.streams import read_all
from leveret.testing.simulation.applications.users import Crew, SimulatedUsers
from leveret.testing.simulation.etcd.server import SimulatedEtcd
from leveret.testing.simulation.machine.disk import SimulatedDisk
from leveret.testing.simulation.machine.full_disk import LimitedDisks
from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.network import SimulatedNetwork
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.accounts import watched_accounts
from leveret.testing.simulation.nodes.audit import PromiseAudit
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.nodes.patches import simulated
from leveret.testing.simulation.nodes.promises import watched_promises
from leveret.testing.simulation.nodes.small_logs import small_logs
from leveret.testing.simulation.worlds.story import Story

REST_TIMEOUT_S: Final = 120.0
START_TIMEOUT_S: Final = 60.0
_LETTERS_S: Final = 6.0
"""The wait for dead letters to be tried again, at the end."""
_LETTERS_ROUNDS: Final = 100
FAULTS_AT_ONCE: Final = 3
AT_ONCE: Final = ""
MOMENTS: Final = (AT_ONCE, AT_ONCE, AT_ONCE, "promise", "promise", "publish")
"""The begin of a fault: at once, at the next promise to an application, or at the next message of a publisher."""
CLOCK_OFFSETS_S: Final = (0.0, 0.0, -3.0, 0.5, 90_000.0)
CLOCK_RATES: Final = (1.0, 1.0, 0.99, 1.01)
DISK_DELAYS_S: Final = (0.0, 0.0, 0.05, 0.3)
WEIGHTS: Final = (0.2, 1.0, 1.0, 4.0)
OFTEN: Final = 200.0
SMALL_LOGS: Final = 0.6
"""The share of runs with small logs, in worlds that have such runs."""


class RunFailure(Exception):
    """A run failed; the text has the seed, the fault and the story.

    Attributes:
        fault: the reason: a BooksFault, NeverConverged, or any other exception that ended the run.
        count: the number of the world's faults.
        story: the last lines of all logs.
    """

    def __init__(self, seed: int, fault: Exception, count: int, story: str) -> None:
        super().__init__(f"seed {seed}: {type(fault).__name__}: {fault}\n{story}")
        self.fault, self.count, self.story = fault, count, story


class RunReport(NamedTuple):
    """The counts of a run.

    Attributes:
        seed: its seed.
        seconds: its virtual time.
        steps: the callbacks of all processes.
        confirmed, settled: the messages that nodes confirmed, and that consumers settled.
        found: the messages left at the end.
        faults: the counts of faults, by kind.
        decisions: the changes of etcd's records: presence, elections, leaders and mirrors of queues, hand-overs.
    """

    seed: int
    seconds: float
    steps: int
    confirmed: int
    settled: int
    found: int
    faults: Mapping[str, int]
    decisions: int


class PossibleFault(NamedTuple):
    """A fault that may happen: its kind, its subject, and its action."""

    kind: str
    act: Callable[[], Coroutine[Any, Any, None] | None]
    about: str = ""


class SimulatedWorld:
    """The base of all worlds; see the module.

    Attributes:
        random: decides the faults; delays and applications have random numbers of their own.
        nodes: all nodes.
        applications: all publishers and consumers.
        queues: the names of the queues that are counted at the end.
        streams: the books of the streams.
        faults: the counts of faults, by kind.
        decisions: see RunReport.
        disk: the disks of all nodes.
        disks: the size limits of these disks.
        audit: the audit of confirmed messages.
        count: the number of faults, including those that were left out.
        habits: decides the characteristics of the run.
        pause_s: the mean time between two faults.
        operator: the operator of the nodes.
        fault: a fault that the world itself has found.
        users: makes applications.
        small_logs_share: the share of runs with small logs.
        has_small_logs: whether logs get segments, and are worked on, at a few kilobytes (see nodes.small_logs).
        often: a kind of fault that happens most of the time in this run; empty for none.
    """

    small_logs_share = 0.0

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        skip: frozenset[int] = frozenset(),
        often: str = "",
        copies: int = FAST_COPIES,
    ) -> None:
        """Begin without a running node.

        Args:
            seed: decides the run.
            folder: the data of all nodes; it is removed at the end.
            skip: the numbers of faults to leave out.
            often: see the class.
            copies: the copies of messages after which all publishers are slower.
        """
        self.seed = seed
        self.often = often
        self.skip = skip
        self.random = Random(f"faults {seed}")
        self.loop = VirtualLoop(Random(f"delays {seed}"))
        self.network = SimulatedNetwork(self.loop, Random(f"network {seed}"))
        # Each run has its own disks, links and pace, so an event that is rare in one run is frequent in another.
        self.habits = Random(f"habits {seed}")
        self.loop.threads_delay_s = self.habits.choice((0.002, 0.02, 0.2))
        self.network.delay_s = self.habits.choice((0.002, 0.01, 0.05))
        self.pause_s = self.habits.choice((0.5, 2.0, 2.0, 6.0))
        self.has_small_logs = Random(f"small logs {seed}").random() < self.small_logs_share and not often
        self.story = Story(self.loop)
        self.books = self.make_books()
        self.nodes: list[SimulatedNode] = []
        self.applications: list[SimulatedApplication] = []
        self.queues: list[str] = []
        self.streams: list[StreamBooks] = []
        self.faults: Counter[str] = Counter()
        self.decisions = 0
        self.count = 0
        self.disk = SimulatedDisk(folder)
        self.disks = LimitedDisks()
        self.audit = PromiseAudit(self.disk, self.nodes)
        self.operator = SimulatedOperator(self.nodes, self.network, self.books, Random(f"operator {seed}"))
        self._operator = self.operator.process
        self._folder = folder
        self._ports: list[int] = []
        self._stream_ports: list[int] = []
        self.users = SimulatedUsers(self.network, self._ports, self._stream_ports, self.books, seed, copies)
        self._harming: list[asyncio.Task[None]] = []
        self.fault: BooksFault | None = None
        self.moments: Sequence[str] = MOMENTS
        self._ambushes: dict[str, Callable[[], object]] = {}
        self._weights: dict[str, float] = {}
        self._context: Context = copy_context()

    def make_books(self) -> RunBooks:
        """Return the books of the run."""
        return RunBooks()

    def add_node(self, name: str, settings: dict[str, str]) -> SimulatedNode:
        """Prepare a node whose clocks differ from those of others."""
        node = SimulatedNode(
            name, self._folder, self.network, self.disk, settings, has_small_logs=self.has_small_logs
        )
        node.clock_offset_s = self.habits.choice(CLOCK_OFFSETS_S)
        node.clock_rate = self.habits.choice(CLOCK_RATES)
        node.disk_delay_s = self.habits.choice(DISK_DELAYS_S)
        self.nodes.append(node)
        self._ports.append(node.amqp_port)
        self._stream_ports.append(node.stream_port)
        return node

    def make_etcd(self) -> SimulatedEtcd:
        """Return an etcd that all nodes of the run find."""
        etcd = SimulatedEtcd(cast("asyncio.AbstractEventLoop", self.loop), Random(f"etcd {self.seed}"))
        etcd.on_change = self._recorded
        etcd.use_here()
        return etcd

    def _recorded(self, transaction: StoreTransaction) -> None:
        """Note a change of the records in etcd."""
        self.decisions += 1

    def give_secret(self, node: SimulatedNode) -> None:
        """Copy the secret of all nodes to a new one."""
        node.data_dir.mkdir(mode=0o700, parents=True)
        secret = node.data_dir / SECRET_FILE
        secret.write_bytes(b"5" * 64 + b"\n")
        secret.chmod(0o400)
        self.disk.settle(node.data_dir)

    @property
    def opened(self) -> list[SimulatedNode]:
        """The nodes that serve clients."""
        return [node for node in self.nodes if node.is_open]

    # -- a run ----------------------------------------------------------------------------------

    def run(self, seconds: float) -> RunReport:
        """Cause faults for `seconds`, heal them, and count the messages. Raises RunFailure."""
        root = logging.getLogger("leveret")
        level, propagates = root.level, root.propagate
        root.addHandler(self.story)
        root.setLevel(logging.INFO)
        root.propagate = False
        # The garbage collector runs at moments that no seed decides, and freed objects may call the loop.
        gc.disable()
        try:
            with (
                self.disk,
                self.disks,
                simulated(self.loop, Random(f"product {self.seed}")),
                watched_promises(self),
                watched_accounts(self),
                small_logs() if self.has_small_logs else nullcontext(),
            ):
                found: int = self.loop.run_until_complete(self._play(seconds))
        except asyncio.CancelledError as cancelled:
            # No hunt ends with it: this is a fault of the run, and of no one who interrupts it.
            ended = NeverConverged("the world awaited what another one cancelled")
            raise RunFailure(self.seed, ended, self.count, self.story.text()) from cancelled
        except Exception as fault:
            raise RunFailure(self.seed, fault, self.count, self.story.text()) from fault
        finally:
            # Errors from freeing killed processes do not count.
            self._clear()
            root.removeHandler(self.story)
            root.setLevel(level)
            root.propagate = propagates
            gc.enable()
            gc.collect()
        return RunReport(
            self.seed,
            self.loop.time(),
            self.loop.steps,
            self.books.confirmed,
            self.books.settled,
            found,
            self.faults,
            self.decisions,
        )

    def all_nodes(self) -> list[SimulatedNode]:
        """Return all nodes of the run, including removed ones."""
        return self.nodes

    def _clear(self) -> None:
        for node in self.all_nodes():
            node.kill()
        for application in self.applications:
            application.process.kill()
            application.process.discard()
        for node in self.all_nodes():
            node.discard()
        self.loop.close()
        _close_below(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _play(self, seconds: float) -> int:
        self.prepare()
        self._context = copy_context()
        await self._operator.spawn(self.set_up())
        for application in self.applications:
            application.on_promise = partial(self.moment, "promise")
            application.on_publish = partial(self.moment, "publish")
            application.start()
        await self.harm(seconds)
        if self.often:
            # The applications were at work for these faults; the rest of the run only counts.
            self._stop_applications()
        await self.heal()
        return await self._operator.spawn(self._count())

    # -- faults -----------------------------------------------------------------------------------

    async def harm(self, seconds: float) -> None:
        """Cause faults for this time, and wait until they are over."""
        until_s = self.loop.time() + seconds
        while self.loop.time() < until_s:
            await asyncio.sleep(self.random.expovariate(1 / self.pause_s))
            self._harm()
            self.look()
        self._ambushes.clear()
        await self.until(lambda: not self._under_way(), "all faults are over")
        self.story.note("-- all heals")

    def _under_way(self) -> list[asyncio.Task[None]]:
        """Return the faults in progress; raise the exception of an ended one that failed."""
        for task in self._harming:
            if task.done():
                task.result()
        self._harming = [each for each in self._harming if not each.done()]
        return self._harming

    def _harm(self) -> None:
        """Begin one fault, unless it is left out or too many are in progress."""
        number, self.count = self.count, self.count + 1
        faults = self.possible_faults()
        [fault] = self.random.choices(faults, [self._weight(each.kind) for each in faults])
        if number in self.skip or len(self._under_way()) >= FAULTS_AT_ONCE:
            return
        moment = self.random.choice(self.moments)
        if moment != AT_ONCE and moment not in self._ambushes:
            self._ambushes[moment] = lambda: self._begin(number, fault)
        else:
            self._begin(number, fault)

    def _weight(self, kind: str) -> float:
        """Return the weight of a kind of fault in this run; weights differ strongly between runs."""
        if kind == self.often:
            return OFTEN
        weight = self._weights.get(kind)
        if weight is None:
            weight = self._weights[kind] = Random(f"weight of {kind} {self.seed}").choice(WEIGHTS)
        return weight

    def _begin(self, number: int, fault: PossibleFault) -> None:
        self.faults[fault.kind] += 1
        self.story.note(f"fault {number}: {fault.kind} {fault.about}".rstrip())
        result = fault.act()
        if result is not None:
            self._harming.append(asyncio.get_running_loop().create_task(result))

    def moment(self, moment: str) -> None:
        """Note a critical moment: a fault that waits for this kind of moment begins now or a little later."""
        ambush = self._ambushes.pop(moment, None)
        if ambush is not None:
            later_s = self.random.choice((0.0, self.random.expovariate(1 / self.network.delay_s)))
            # The callback belongs to no process, so it runs even if the application's process ends.
            self.loop.call_later(later_s, ambush, context=self._context)

    async def until_moment(self, timeout_s: float, moment: str | None = None) -> None:
        """Wait for the next critical moment, by default of a random kind, at most `timeout_s`."""
        moment = self.random.choice(self.moments) if moment is None else moment
        reached = asyncio.get_running_loop().create_future()
        if moment != AT_ONCE and moment not in self._ambushes:
            self._ambushes[moment] = lambda: None if reached.done() else reached.set_result(None)
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await reached

    async def fill_disk(self, node: SimulatedNode) -> None:
        """Fill a node's disk almost completely for some time."""
        directory = node.data_dir
        self.disks.fill(directory, self.random.choice((0, 3_000, 50_000)))
        await asyncio.sleep(self.random.choice((0.5, 3.0, 8.0)))
        self.disks.limit(directory, None)

    def waits(self, batch: ConfirmBatch, queues: list[Queue]) -> None:
        """See promises.PromiseWatch."""
        self.audit.tied(batch, [each for each in queues if self.is_audited(each)])

    def is_audited(self, queue: Queue) -> bool:
        """Return whether each confirm in a queue is compared with the disks: by default if it is never deleted."""
        return queue.key[1] in self.queues

    def promised(self, node: str, batch: ConfirmBatch, queues: list[Queue]) -> None:
        """See promises.PromiseWatch. Note a fault if the node must not confirm the batch."""
        self.audit.confirms(batch)

    def accounted(self, leader: str, node: str, log: str, end: int) -> None:
        """See accounts.AccountWatch. Note a fault if the mirror's disk does not have the log so far."""
        try:
            self.audit.acked(leader, node.partition("@")[0], log, end)
        except BooksFault as fault:
            self.fault = self.fault or fault

    def prepare(self) -> None:
        """Set the context that all processes inherit."""

    async def set_up(self) -> None:
        """Start nodes, and make queues and applications."""
        raise NotImplementedError

    def faults_of(self, node: SimulatedNode) -> list[PossibleFault]:
        """Return the faults that may happen to any node that runs."""
        return [
            PossibleFault("kill", node.kill, node.name),
            PossibleFault("lose power", lambda: node.lose_power(self.random), node.name),
            PossibleFault("stop", node.stop, node.name),
            PossibleFault("pause", lambda: self._pause(node), node.name),
        ]

    async def _pause(self, node: SimulatedNode) -> None:
        node.pause()
        await asyncio.sleep(self.stops_s())
        node.resume()

    def stops_s(self) -> float:
        """Return for how long the next suspended node stands still."""
        return self.random.uniform(0.1, 5)

    def possible_faults(self) -> Sequence[PossibleFault]:
        """Return the faults that may happen now."""
        raise NotImplementedError

    async def heal(self) -> None:
        """End all faults; return once the world is whole again."""
        raise NotImplementedError

    def look(self) -> None:
        """Raise the fault of an application or the world, and any unexpected error of a node."""
        if self.fault is not None:
            raise self.fault
        for application in self.applications:
            if application.fault is not None:
                raise application.fault
        for node in self.nodes:
            if node.bug is not None:
                raise NeverConverged(f"{node.name} ended: {node.bug!r}") from node.bug
        bug = self.story.bug or self.loop.bug
        if bug is not None:
            raise NeverConverged(f"a node met an unexpected error: {bug!r}") from bug

    async def until(self, holds: Callable[[], bool], what: str, timeout_s: float = REST_TIMEOUT_S) -> None:
        """Wait until `holds` returns True.

        Raises:
            NeverConverged: the condition does not hold in time; `what` names it.
        """
        if not await wait_until(holds, timeout_s):
            raise NeverConverged(f"not within {timeout_s:g} s: {what}")

    # -- queues and applications ------------------------------------------------------------------

    async def declare(self, queue: str, **arguments: Any) -> None:
        """Declare a durable queue, which is counted at the end."""
        await self.operator.declare(queue, **arguments)
        self.queues.append(queue)

    async def declare_stream(self, name: str) -> StreamBooks:
        """Declare a stream, which is read at the end."""
        await self.operator.declare(name, x_queue_type="stream")
        self.streams.append(StreamBooks(name, self.books))
        return self.streams[-1]

    def publishers(self, count: int, interval_s: float) -> None:
        """Make `count` applications that publish to all queues."""
        pace = PublishingPace(interval_s)
        self.applications += [self.users.publisher(self.queues, pace) for _ in range(count)]

    def consumers(self, queues: Sequence[str]) -> None:
        """Make an application for each of these queues that consumes it."""
        self.applications += [self.users.consumer(queue) for queue in queues]

    async def client(self) -> SimulatedClient:
        """Connect the operator to an open node, with retries. Raises NeverConverged."""
        return await self.operator.client()

    def employ(self, crews: Sequence[Callable[[], Crew]]) -> None:
        """Make a choice of these applications, which differs between runs."""
        for crew in self.habits.sample(crews, self.habits.randint(2, min(4, len(crews)))):
            self.applications += crew()

    async def compare(self) -> None:
        """Raise BooksFault if copies of the same data differ in a world at rest."""

    # -- the end ----------------------------------------------------------------------------------

    def _kept_letters(self) -> int:
        """The number of dead letters that queues keep."""
        brokers = [node.roles.node.broker for node in self.nodes if node.is_open and node.roles is not None]
        return sum(queue.kept_count for broker in brokers for queue in broker.led_queues())

    def _stop_applications(self) -> None:
        for application in self.applications:
            application.is_stopping = True

    async def rest(self) -> None:
        """Stop the applications; raise what they, or the nodes, have found until they are at rest."""
        self._stop_applications()
        await asyncio.sleep(10)
        self.look()

    async def _count(self) -> int:
        """Stop the applications, take the messages left, and compare them with the books."""
        await self.rest()
        await self.compare()
        for application in self.applications:
            if isinstance(application, SimulatedQueueOwner):
                await self.operator.declare(application.queue, **application.arguments)
                self.queues.append(application.queue)
        found = {queue: await self.operator.take_all(queue) for queue in self.queues}
        for _ in range(_LETTERS_ROUNDS):
            if not self._kept_letters():
                break
            # There is room for them now.
            await asyncio.sleep(_LETTERS_S)
            for queue, numbers in found.items():
                numbers += await self.operator.take_all(queue)
        else:
            raise NeverConverged(f"{self._kept_letters()} dead letters are kept for ever")
        self.books.judge(found)
        for stream in self.streams:
            client = await self.client()
            await read_all(client, stream)
            client.close()
            stream.judge()
        return sum(map(len, found.values()))


def _close_below(folder: Path) -> None:
    """Close the files that killed processes left open, as the kernel does for real ones."""
    prefix = f"{folder.resolve()}/"
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(prefix):
                os.close(int(name))
