"""The site of a downstream: the nodes that share its decisions, and their parts of an operator's command.

A node alone is its own site and does not use this module. In a cluster each replicated vhost has an owner
(core.replication.vhost_owners), and any node carries out an operator's command for all: it requests the parts of the
others (`SiteParts`). A node answers a short question at once. It begins long work, and the caller polls it until it is
done. Work that is no longer polled is ended, because its caller is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from leveret.core.replication.vhost_owners import VhostOwner
from leveret.model.errors import LeveretError, NotFound, Refusal
from leveret.runtime.standby.decisions import SharedDecisions
from leveret.runtime.standby.pipeline_process import Event, PipelineFailed, Report
from leveret.runtime.standby.progress import JoinedProgress

STANDBY: Final = "standby"
"""The name of this module's request to another node."""
LOOK_S: Final = 0.3
UNSEEN_S: Final = 60.0
"""Work that was not polled for this time is ended."""

Work = Callable[[Mapping[str, Any], Report], Awaitable[Any]]
"""(the request, the receiver of progress) -> the result."""


class StandbySite(SharedDecisions, Protocol):
    """The cluster, as this room uses it; runtime.cluster.sites.standby_site implements it."""

    @property
    def name(self) -> str:
        """This node."""

    @property
    def members(self) -> Collection[str]:
        """All nodes of the cluster."""

    @property
    def running(self) -> list[str]:
        """The running nodes, in the order of joining."""

    @property
    def owners(self) -> Mapping[str, VhostOwner]:
        """The owner of each vhost."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""

    @property
    def is_shared(self) -> bool:
        """Whether all nodes have one archive."""

    @property
    def trouble(self) -> str:
        """The reason why this node may own no vhost although it runs; empty if it may."""

    async def ask(self, node: str, about: dict[str, Any]) -> dict[str, Any]:
        """Return another node's answer to the request STANDBY.

        Raises:
            LeveretError: the node does not answer.
        """

    async def all_know(self) -> None:
        """Return once all running nodes have the owners of vhosts that this node has."""

    async def note(self, vhost: str, owner: VhostOwner) -> None:
        """Replace the record of a vhost, unless it has changed meanwhile, or has another owner, or a later term by now.

        Raises:
            LeveretError: the cluster's store does not answer.
        """

    async def forget(self, vhosts: Collection[str], *, keep: Collection[str] = ()) -> None:
        """Remove the records of vhosts whose data are deleted; those in `keep` stay, as vhosts without data.

        Raises:
            LeveretError: the cluster's store does not answer.
        """

    async def wait(self, timeout_s: float) -> None:
        """Return when the decisions, the owners or the running nodes changed, or after `timeout_s`."""


class SiteParts:
    """The nodes' parts of commands: requests those of other nodes, and carries out this node's."""

    def __init__(
        self,
        site: StandbySite,
        answers: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Any]]],
        works: Mapping[str, Work],
    ) -> None:
        """Begin without work: `answers` are the handlers of short questions, `works` those of long work, by name."""
        self.site = site
        self._answers = dict(answers)
        self._works = dict(works)
        self._running: dict[int, _RunningWork] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._numbers = itertools.count(1)

    def add(
        self,
        answers: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Any]]],
        works: Mapping[str, Work],
    ) -> None:
        """Add handlers of short questions and of long work."""
        self._answers |= answers
        self._works |= works

    # -- asking -----------------------------------------------------------------------------------

    async def of(self, node: str, name: str, **about: Any) -> Any:
        """Return the answer of a node, this one or another.

        Raises:
            LeveretError: the node does not answer, or refuses.
        """
        if node == self.site.name:
            return await self._answers[name](about)
        return (await self.site.ask(node, {"name": name, **about}))["found"]

    async def of_all(self, name: str, **about: Any) -> dict[str, Any]:
        """Return the answers of all running nodes, by node.

        Raises:
            LeveretError: one of them does not answer; the text names it.
        """
        found = await self._asked(name, about)
        for node, each in found.items():
            if isinstance(each, BaseException):
                raise _of_node(node, each) from each
        return found

    async def of_those_that_answer(self, name: str, **about: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the answers of the running nodes, and the reasons of those that do not answer, by node."""
        answers: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        for node, each in (await self._asked(name, about)).items():
            if isinstance(each, LeveretError):
                reasons[node] = str(each)
            elif isinstance(each, BaseException):
                raise each
            else:
                answers[node] = each
        return answers, reasons

    async def _asked(self, name: str, about: dict[str, Any]) -> dict[str, Any]:
        """Return the answers of all running nodes, or their exceptions, by node."""
        nodes = self.site.running
        asked = (self.of(node, name, **about) for node in nodes)
        return dict(zip(nodes, await asyncio.gather(*asked, return_exceptions=True), strict=True))

    async def work(self, nodes: Collection[str], name: str, report: Report, **about: Any) -> dict[str, Any]:
        """Run the work at these nodes at the same time; return the results by node, and report progress as one.

        Raises:
            LeveretError: a node failed; raised after all have ended. The text names the node.
        """
        progress = JoinedProgress(report)
        tasks = [
            asyncio.create_task(self._work_of(node, name, partial(progress.take, node), about))
            for node in nodes
        ]
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for node, task in zip(nodes, tasks, strict=True):
            if error := task.exception():
                raise _of_node(node, error) from error
        return {node: task.result() for node, task in zip(nodes, tasks, strict=True)}

    async def _work_of(self, node: str, name: str, report: Report, about: dict[str, Any]) -> Any:
        if node == self.site.name:
            return await self._works[name](about, report)
        begun = await self.site.ask(node, {"name": "begin", "work": name, "about": about})
        number, seen = begun["found"], 0
        try:
            while True:
                answer = await self.site.ask(node, {"name": "look", "number": number, "seen": seen})
                looked = answer["found"]
                for event in looked["events"]:
                    report(event)
                seen += len(looked["events"])
                if looked["error"]:
                    raise PipelineFailed(looked["error"])
                if looked["is_done"]:
                    return looked["result"]
                await asyncio.sleep(LOOK_S)
        except asyncio.CancelledError:
            with suppress(LeveretError):
                await self.site.ask(node, {"name": "end", "number": number})
            raise

    # -- answering --------------------------------------------------------------------------------

    async def answer(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Answer another node's question.

        Raises:
            LeveretError: this node refuses.
        """
        self._end_unseen()
        match about["name"]:
            case "begin" if about["work"] not in self._works:
                raise NotFound(f"a node of this version does not know the work '{about['work']}'")
            case "begin":
                number = next(self._numbers)
                self._running[number] = _RunningWork(self._works[about["work"]], about["about"])
                if self._timer is None:
                    self._look_after()
                return {"found": number}
            case "look":
                running = self._running.get(int(about["number"]))
                if running is None:
                    raise NotFound(
                        "this node no longer runs the operation: it was restarted, or cancelled the operation"
                    )
                return {"found": running.look(int(about["seen"]))}
            case "end":
                running = self._running.pop(int(about["number"]), None)
                if running is not None:
                    running.end()
                return {"found": None}
        answer = self._answers.get(about["name"])
        if answer is None:
            raise NotFound(f"a node of this version does not know the request '{about['name']}'")
        return {"found": await answer(about)}

    def _look_after(self) -> None:
        """End work whose caller is gone, also when no other node asks anything."""
        self._end_unseen()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(UNSEEN_S, self._look_after) if self._running else None

    def _end_unseen(self) -> None:
        now_s = time.monotonic()
        for number, running in list(self._running.items()):
            if now_s - running.seen_s > UNSEEN_S:
                running.end()
                del self._running[number]

    async def stop(self) -> None:
        """End all work, and wait for that: a thread may do a part of it, with files of this node."""
        if self._timer is not None:
            self._timer.cancel()
        ended = [running.end() for running in self._running.values()]
        self._running.clear()
        if ended:
            await asyncio.wait(ended)


class _RunningWork:
    """Work for another node.

    Attributes:
        seen_s: the time of that node's last poll, on the monotonic clock.
    """

    def __init__(self, work: Work, about: Mapping[str, Any]) -> None:
        self.seen_s = time.monotonic()
        self._events: list[Event] = []
        self._task: asyncio.Future[Any] = asyncio.ensure_future(work(about, self._events.append))

    def look(self, seen: int) -> dict[str, Any]:
        """Return the events after the first `seen` ones, and, if the work is done, its result or error."""
        self.seen_s = time.monotonic()
        found: dict[str, Any] = {
            "events": self._events[seen:],
            "is_done": self._task.done(),
            "result": None,
            "error": "",
        }
        if self._task.done():
            error = None if self._task.cancelled() else self._task.exception()
            if self._task.cancelled() or error is not None:
                found["error"] = str(error) if isinstance(error, LeveretError) else f"it failed: {error!r}"
            else:
                found["result"] = msgspec.to_builtins(self._task.result())
        return found

    def end(self) -> asyncio.Future[Any]:
        """End the work; return what is done when it has ended."""
        self._task.cancel()
        # The work is not polled again, and asyncio logs an exception that is never retrieved.
        self._task.add_done_callback(_retrieved)
        return self._task


def _retrieved(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _of_node(node: str, error: BaseException) -> BaseException:
    """Return a node's refusal or failure, with the node's name in its text."""
    if not isinstance(error, LeveretError):
        return error
    is_plain = isinstance(error, Refusal) and type(error).__init__ is Exception.__init__
    return (type(error) if is_plain else PipelineFailed)(f"{node}: {error}")
