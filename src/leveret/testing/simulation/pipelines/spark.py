"""Stands for Spark: runs the product's sources, sinks and tasks in simulated processes, any of which may be killed.

As Spark does, it asks a streaming source from a process of its own, runs tasks in workers that stay for later tasks,
repeats a failed task, and ends a query whose task failed too often. Only the calls of the product's code are here. What
is missing: plans, shuffles, serialization, checkpoints (the product deletes Spark's), and clusters of machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from leveret.testing.simulation.machine.blocking import (
    BlockingProcess,
    BlockingThread,
    blocking_process,
    sleep,
    step,
    wait,
)
from leveret.testing.simulation.machine.loop import virtual_loop

T = TypeVar("T")

CORES: Final = 2
TRIES_MAX: Final = 4
STARTS_S: Final = (0.1, 0.1, 2.0, 5.0)
_BATCH_S: Final = 0.05
_CRASHED: Final = "Python worker exited unexpectedly (crashed)"


class TaskFailed(Py4JJavaError, PySparkException):  # type: ignore[misc]
    """A task failed as often as Spark repeats it; the text is the last exception's."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class SimulatedSession:
    """Replaces a SparkSession; also its context, its readers and its sources' registry.

    Attributes:
        workers: the Python processes of the executors.
    """

    # It is no local master, so no class archive of Java is made.
    master = "spark://simulated"
    defaultParallelism = CORES

    def __init__(self) -> None:
        """Start it in the present process."""
        self._driver = blocking_process()
        self._sources: dict[str, Any] = {}
        self._cancelled = 0
        self.workers: list[BlockingProcess | None] = [None] * CORES
        self.sparkContext = self.dataSource = self

    def register(self, source: Any) -> None:
        """See pyspark.sql.datasource.DataSource."""
        self._sources[source.name()] = source

    @property
    def readStream(self) -> SimulatedStream:
        """See SparkSession."""
        return SimulatedStream(self, self._sources)

    def parallelize(self, items: range, count: int) -> SimulatedTasks:
        """See SparkContext."""
        return SimulatedTasks(self, list(items))

    def range(self, begin: int, end: int, by: int, count: int) -> SimulatedTasks:
        """See SparkSession."""
        return SimulatedTasks(self, list(range(begin, end, by)))

    def cancelAllJobs(self) -> None:
        """See SparkContext."""
        self._cancelled += 1
        for worker in self.workers:
            if worker is not None:
                worker.end(-9)

    def process(self, title: str) -> BlockingProcess:
        """Start a process of Spark's."""
        return BlockingProcess(self._driver, f"{self._driver.title} {title}")

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run tasks in the workers, as many at once as there are; return their results.

        Raises:
            TaskFailed: a task failed as often as it is repeated.
        """
        results: dict[int, T] = {}
        waiting = list(enumerate(tasks))
        virtual_loop().random.shuffle(waiting)
        cancelled = self._cancelled

        def core(index: int) -> None:
            while waiting:
                number, task = waiting.pop()
                results[number] = self._tried(index, task, cancelled)

        # The threads are the JVM's, whose process is the driver's.
        threads = [BlockingThread(partial(core, index), self._driver) for index in range(CORES)]
        for thread in threads:
            thread.result()
        return [results[number] for number in range(len(tasks))]

    def _tried(self, core: int, task: Callable[[], T], cancelled: int) -> T:
        error = ""
        for _ in range(TRIES_MAX):
            if self._cancelled > cancelled:
                raise TaskFailed("the job was cancelled")
            worker = self.workers[core]
            if worker is None or not worker.is_alive:
                worker = self.workers[core] = self.process(f"worker {core}")
            try:
                thread = in_process(worker, task)
            except WorkerLost as lost:
                error = str(lost)
                continue
            failure = thread.exception()
            if failure is None:
                return thread.result()
            error = f"{type(failure).__name__}: {failure}"
        raise TaskFailed(error)


class WorkerLost(Exception):
    """The process of a call has ended."""


def in_process(process: BlockingProcess, call: Callable[[], T]) -> BlockingThread[T]:
    """Have another process call a function; return the ended thread.

    Raises:
        WorkerLost: the process ended.
    """
    step()
    if not process.is_alive:
        raise WorkerLost(_CRASHED)
    ended = virtual_loop().create_future()
    before = process.on_end

    def end(status: int) -> None:
        process.on_end = before
        before(status)
        if not ended.done():
            ended.set_result(None)

    process.on_end = end
    thread = BlockingThread(call, process)
    thread.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
    wait(ended)
    process.on_end = before
    if not thread.done():
        raise WorkerLost(_CRASHED)
    step()
    return thread


class SimulatedTasks:
    """Replaces an RDD of numbers, and a frame of them: a task for each."""

    def __init__(self, session: SimulatedSession, numbers: list[int]) -> None:
        """Begin with tasks that do nothing."""
        self._session = session
        self._numbers = numbers
        self._work: Callable[[int], Any] = int

    def map(self, work: Callable[[int], Any]) -> SimulatedTasks:
        """See pyspark's RDD."""
        self._work = work
        return self

    def mapInArrow(
        self, work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> SimulatedTasks:
        """See pyspark's DataFrame; a row is a dict, of the only batch that the work returns."""

        def of_one(number: int) -> Any:
            batch = pa.RecordBatch.from_arrays([pa.array([number], pa.int64())], names=["id"])
            return next(iter(work(iter([batch])))).to_pylist()[0]

        return self.map(of_one)

    def collect(self) -> list[Any]:
        """See pyspark's RDD."""
        return self._session.run([partial(self._work, number) for number in self._numbers])


class SimulatedStream:
    """Replaces the reader and the writer of a streaming query, by which one is made step by step."""

    def __init__(self, session: SimulatedSession, sources: dict[str, Any]) -> None:
        """Begin without a source and a sink."""
        self._session = session
        self._sources = sources
        self._formats: list[str] = []
        self._options: dict[str, str] = {}

    def format(self, name: str) -> SimulatedStream:
        """See pyspark's DataStreamReader, DataStreamWriter."""
        self._formats.append(name)
        return self

    def options(self, **options: str) -> SimulatedStream:
        """See pyspark's DataStreamReader, DataStreamWriter."""
        self._options = options
        return self

    def option(self, name: str, value: str) -> SimulatedStream:
        """See pyspark's DataStreamWriter; the product names a checkpoint here, which it does not use."""
        return self

    def queryName(self, name: str) -> SimulatedStream:
        """See pyspark's DataStreamWriter."""
        return self

    def load(self) -> SimulatedStream:
        """See pyspark's DataStreamReader."""
        return self

    @property
    def writeStream(self) -> SimulatedStream:
        """See pyspark's DataFrame."""
        return self

    def start(self) -> SimulatedQuery:
        """See pyspark's DataStreamWriter."""
        source, sink = (self._sources[name](self._options) for name in self._formats)
        return SimulatedQuery(self._session, source, sink)


class SimulatedQuery:
    """Replaces a StreamingQuery: batch after batch, until one fails."""

    def __init__(self, session: SimulatedSession, source: Any, sink: Any) -> None:
        """Start it."""
        self._session = session
        self._source, self._sink = source, sink
        self._reading, self._committing = session.process("source"), session.process("sink")
        self._is_stopped = False
        self._thread = BlockingThread(self._run)

    @property
    def isActive(self) -> bool:
        """See StreamingQuery."""
        return not self._thread.done()

    def exception(self) -> BaseException | None:
        """See StreamingQuery."""
        return self._thread.exception() if self._thread.done() and not self._is_stopped else None

    def stop(self) -> None:
        """See StreamingQuery; a commit that is under way may yet come to its end, in its own process."""
        self._is_stopped = True
        self._reading.end(-9)
        self._session.cancelAllJobs()
        if virtual_loop().random.random() < 0.5:
            self._committing.end(-9)

    def _run(self) -> None:
        reader = self._source.streamReader(None)
        writer = self._sink.streamWriter(None, False)
        offset, batch = self._read(reader.initialOffset), 0
        while True:
            end = self._read(partial(reader.latestOffset, offset, None))
            if end == offset:
                continue
            partitions = self._read(partial(reader.partitions, offset, end))
            self._check()
            tasks = [partial(_write, self._source, self._sink, each) for each in partitions]
            written = self._session.run(tasks)
            self._check()
            in_process(self._committing, partial(writer.commit, written, batch)).result()
            offset, batch = end, batch + 1
            sleep(_BATCH_S * virtual_loop().random.random())

    def _read(self, ask: Callable[[], Any]) -> Any:
        self._check()
        return in_process(self._reading, ask).result()

    def _check(self) -> None:
        if self._is_stopped:
            raise WorkerLost("the query was stopped")


def _write(source: Any, sink: Any, partition: Any) -> Any:
    # Spark makes both objects anew in each worker.
    return sink.streamWriter(None, False).write(source.streamReader(None).read(partition))


def start_simulated_session(*_: object, **__: object) -> SimulatedSession:
    """Replace pipeline.spark.session.start_session."""
    sleep(virtual_loop().random.choice(STARTS_S))
    return SimulatedSession()
