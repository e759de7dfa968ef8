"""The site of a downstream: the nodes that share its decisions, and their parts of what an operator asks for.

A node alone is its own site and needs nothing of this. In a cluster each replicated vhost has an owner
(core.replication.vhost_owners), and any node carries out an operator's command for all: it has the others do their
parts (`SiteParts`). Short questions are answered at once; long work is begun, and looked at until it is done. Work
that nobody looks at any more is ended, because its caller is gone.
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
from leveret.runtime.standby.pipeline_process import Event, PipelineFailed
from leveret.runtime.standby.progress import JoinedProgress

STANDBY: Final = "standby"
"""The name of this module's question to another node."""
LOOK_S: Final = 0.3
UNSEEN_S: Final = 60.0
"""The time after which work that nobody looks at is ended."""

Report = Callable[[Event], None]
Work = Callable[[Mapping[str, Any], Report], Awaitable[Any]]
"""(what is asked for, where progress goes) -> the result."""


class StandbySite(SharedDecisions, Protocol):
    """A cluster, as its downstream side uses it: runtime.cluster.standby_site."""

    @property
    def name(self) -> str:
        """This node."""

    @property
    def running(self) -> list[str]:
        """The nodes that run, in the order of joining."""

    @property
    def owners(self) -> Mapping[str, VhostOwner]:
        """The owner of each vhost."""

    @property
    def trouble(self) -> str:
        """The reason why this node owns no vhost although it runs; empty if it may."""

    async def ask(self, node: str, about: dict[str, Any]) -> dict[str, Any]:
        """Another node's answer to STANDBY.

        Raises:
            LeveretError: it does not answer.
        """

    async def all_know(self) -> None:
        """Return once all running nodes know who owns what, as this one does."""

    async def note(self, vhost: str, owner: VhostOwner) -> None:
        """Replace the record of a vhost that this node owns, unless it has changed meanwhile.

        Raises:
            LeveretError: the cluster's store does not answer.
        """

    async def forget(self, vhosts: Collection[str], *, keep: Collection[str] = ()) -> None:
        """Remove the records of vhosts whose data are deleted; those to `keep` stay, with nothing transferred.

        Raises:
            LeveretError: the cluster's store does not answer.
        """

    async def wait(self, timeout_s: float) -> None:
        """Return when something of this changed, or after a time."""


class SiteParts:
    """The parts of the nodes: asks for those of others, and answers for this node's."""

    def __init__(
        self,
        site: StandbySite,
        answers: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Any]]],
        works: Mapping[str, Work],
    ) -> None:
        """`answers` are short questions and `works` long ones, by name."""
        self.site = site
        self._answers = dict(answers)
        self._works = dict(works)
        self._running: dict[int, _RunningWork] = {}
        self._numbers = itertools.count(1)

    def add(
        self,
        answers: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Any]]],
        works: Mapping[str, Work],
    ) -> None:
        """Answer more short questions, and do more works."""
        self._answers |= answers
        self._works |= works

    # -- asking -----------------------------------------------------------------------------------

    async def of(self, node: str, name: str, **about: Any) -> Any:
        """The answer of a node, this one or another.

        Raises:
            LeveretError: it does not answer, or its answer is a refusal.
        """
        if node == self.site.name:
            return await self._answers[name](about)
        return (await self.site.ask(node, {"name": name, **about}))["found"]

    async def of_all(self, name: str, **about: Any) -> dict[str, Any]:
        """The answers of all running nodes, by node.

        Raises:
            LeveretError: one of them does not answer; the text names it.
        """
        nodes = self.site.running
        found = await asyncio.gather(
            *(self.of(node, name, **about) for node in nodes), return_exceptions=True
        )
        for node, each in zip(nodes, found, strict=True):
            if isinstance(each, BaseException):
                raise _of_node(node, each) from each
        return dict(zip(nodes, found, strict=True))

    async def of_those_that_answer(self, name: str, **about: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """The answers of the running nodes, and of those that do not answer the reasons."""
        nodes = self.site.running
        found = await asyncio.gather(
            *(self.of(node, name, **about) for node in nodes), return_exceptions=True
        )
        answers: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        for node, each in zip(nodes, found, strict=True):
            if isinstance(each, LeveretError):
                reasons[node] = str(each)
            elif isinstance(each, BaseException):
                raise each
            else:
                answers[node] = each
        return answers, reasons

    async def work(self, nodes: Collection[str], name: str, report: Report, **about: Any) -> dict[str, Any]:
        """Have these nodes work at the same time; return the results by node, and report their progress as one.

        Raises:
            LeveretError: one of them failed, after all have ended; the text names it.
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
                looked = (await self.site.ask(node, {"name": "look", "number": number, "seen": seen}))[
                    "found"
                ]
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
            LeveretError: the answer is a refusal.
        """
        self._end_unseen()
        match about["name"]:
            case "begin":
                number = next(self._numbers)
                self._running[number] = _RunningWork(self._works[about["work"]], about["about"])
                return {"found": number}
            case "look":
                running = self._running.get(int(about["number"]))
                if running is None:
                    raise NotFound("this node does not do that any more: it was started again, or gave it up")
                return {"found": running.look(int(about["seen"]))}
            case "end":
                running = self._running.pop(int(about["number"]), None)
                if running is not None:
                    running.end()
                return {"found": None}
        answer = self._answers.get(about["name"])
        if answer is None:
            raise NotFound(f"'{about['name']}' is an unknown question for a node of this version")
        return {"found": await answer(about)}

    def _end_unseen(self) -> None:
        now_s = time.monotonic()
        for number, running in list(self._running.items()):
            if now_s - running.seen_s > UNSEEN_S:
                running.end()
                del self._running[number]

    def stop(self) -> None:
        """End all work."""
        for running in self._running.values():
            running.end()
        self._running.clear()


class _RunningWork:
    """Work for another node.

    Attributes:
        seen_s: when that node looked last.
    """

    def __init__(self, work: Work, about: Mapping[str, Any]) -> None:
        self.seen_s = time.monotonic()
        self._events: list[Event] = []
        self._task: asyncio.Future[Any] = asyncio.ensure_future(work(about, self._events.append))

    def look(self, seen: int) -> dict[str, Any]:
        """The events after the first `seen` ones, and the result or the error if it is done."""
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

    def end(self) -> None:
        """End it."""
        self._task.cancel()
        if self._task.done() and not self._task.cancelled():
            # It was not looked at again; an exception that nobody takes would be logged.
            self._task.exception()


def _of_node(node: str, error: BaseException) -> BaseException:
    """A node's refusal or failure, naming the node."""
    if not isinstance(error, LeveretError):
        return error
    is_plain = isinstance(error, Refusal) and type(error).__init__ is Exception.__init__
    return (type(error) if is_plain else PipelineFailed)(f"{node}: {error}")
