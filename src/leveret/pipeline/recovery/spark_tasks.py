"""Runs the tasks of a recovery on Spark, which is started early, in a thread, or taken over from the transfer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Final

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from leveret.pipeline.jobs.job import RecoverJob
from leveret.pipeline.spark.errors import SparkFailed, cause_of
from leveret.pipeline.spark.session import empty_scratch, start_session

GROUPS_PER_CORE: Final = 2
_POLL_S: Final = 0.1


class SparkTasks:
    """Spark, as a recovery uses it: Spark's core alone, because its SQL would take a second to start for a few rows.

    Args:
        started: called once, when there is a session.
        meanwhile: called with a number of seconds, over and over while tasks run; it waits so long for their reports.
        ended: called in another thread when tasks have ended, to end such a wait.
        session: the session of the transfer that ended; None if one is to be started.
    """

    def __init__(
        self,
        job: RecoverJob,
        started: Callable[[], None],
        meanwhile: Callable[[float], None],
        ended: Callable[[], None],
        session: SparkSession | None = None,
    ) -> None:
        self._job = job
        self._started = started
        self._meanwhile = meanwhile
        self._ended = ended
        self._threads = ThreadPoolExecutor(2, "recovery")
        self._start: Future[SparkSession] | None = None
        self._given = session

    def begin(self) -> None:
        """Start Spark in a thread, unless that was begun, or it runs already."""
        if self._start is not None:
            return
        if self._given is not None:
            self._start = Future()
            self._start.set_result(self._given)
            self._started()
            return
        scratch = empty_scratch(self._job.work, "recovery")
        self._start = self._threads.submit(
            start_session, "recovery", self._job.spark, scratch, store=self._job.root
        )

    @cached_property
    def _session(self) -> SparkSession:
        self.begin()
        assert self._start is not None
        session = self._start.result()
        if self._given is None:
            self._started()
        return session

    def wait_started(self) -> None:
        """Start Spark unless it runs, and wait for it."""
        _ = self._session

    @property
    def cores(self) -> int:
        """The number of tasks that run at once; starts Spark."""
        return self._session.sparkContext.defaultParallelism

    @property
    def groups(self) -> int:
        """The number of groups to cut files into: more than cores, as groups take different times."""
        return self.cores * GROUPS_PER_CORE

    def run(self, tasks: list[Any], work: Callable[[Any], Any], result: Any) -> Iterator[Any]:
        """Run `work` for each of `tasks` in a task of Spark's own; yield the results, which have the type `result`.

        Raises:
            SparkFailed: a task failed as often as Spark repeats it.
        """
        if not tasks:
            return

        def do(index: int) -> bytes:
            return msgspec.msgpack.encode(work(tasks[index]))

        handful = self._session.sparkContext.parallelize(range(len(tasks)), len(tasks)).map(do)
        running = self._threads.submit(handful.collect)
        running.add_done_callback(lambda _: self._ended())
        while not running.done():
            self._meanwhile(_POLL_S)
        self._meanwhile(0)
        try:
            found = running.result()
        except Py4JJavaError as error:
            raise SparkFailed(cause_of(error)) from error
        for each in found:
            yield msgspec.msgpack.decode(each, type=result)
