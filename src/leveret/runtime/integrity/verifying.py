"""Compares this node's logs with another node's, log by log, while both nodes continue.

The compared range of each log is the range that both nodes certainly have: from the later of the two begins to the
earlier of the two ends, in steps of a segment, by checksum. Records outside of the range are no difference by
themselves: a follower gets them, or drops them, a moment later. More is known only of a follower that is *in step*:
questions travel behind the changes, so it answers after it has applied all changes before the question.

An apparent difference may be a recent change. So it is compared again, from the begin, before it is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from leveret.model.errors import LeveretError
from leveret.runtime.integrity.answers import Answers, FileEntry, Found, LogEntry, need, need_list
from leveret.runtime.integrity.peers import IN_STEP, InspectedPeer

Row: TypeAlias = dict[str, Any]
About: TypeAlias = dict[str, str | int | bool]

_PAUSES_S: Final = (0.05, 0.2, 1.0)
"""Pauses before an apparent difference is compared again: the changes of one turn of a loop travel together."""


class _Compared(NamedTuple):
    """The outcome of one comparison of a log: compared offsets and octets. `difference` is empty if there is none."""

    difference: str
    first_offset: int | None = None
    next_offset: int | None = None
    chunks: int | None = None
    octets: int | None = None
    note: str = ""


class _LeaderAndFollower(NamedTuple):
    """The data of leader and follower."""

    leader: Found
    follower: Found


class Verification:
    """Compares with one side.

    Attributes:
        octets_done: of all logs so far, as far as both sides have them.
    """

    def __init__(
        self,
        answers: Answers,
        peer: InspectedPeer,
        name: str,
        queue_of: Callable[[str], tuple[str, str] | None],
        *,
        deep: bool,
    ) -> None:
        """`answers` are those of this node, whose name is `name`.

        A `deep` comparison reads all stored data on both sides.
        """
        self._answers = answers
        self._peer = peer
        self._leader, self._follower = (peer.name, name) if peer.is_leader else (name, peer.name)
        self._queue_of = queue_of
        self._deep = deep
        self.octets_done = 0

    async def rows(self) -> AsyncIterator[Row]:
        """Yield one row a log, and one for each state file; see management.node.InspectionOperations.

        A log that cannot be compared has a row with the reason. When the link ends, the rows end.
        """
        try:
            names = sorted(await self._names())
        except LeveretError as error:
            yield self._row("", _Compared(f"not compared: {error}"))
            return
        for name in names:
            try:
                compared = await self._log(name)
            except LeveretError as error:
                compared = _Compared(f"not compared: {error}")
            if compared is not None:
                yield self._row(name, compared)
            if not self._peer.is_connected:
                return
        try:
            for name, compared in (await self._files()).items():
                yield self._row(name, compared)
        except LeveretError as error:
            yield self._row("", _Compared(f"state files are not compared: {error}"))

    def _row(self, name: str, compared: _Compared) -> Row:
        vhost, queue = self._queue_of(name) or (None, None)
        return {
            "follower": self._follower,
            "log": name,
            "vhost": vhost,
            "queue": queue,
            "first_offset": compared.first_offset,
            "next_offset": compared.next_offset,
            "chunks": compared.chunks,
            "octets": compared.octets,
            "match": not compared.difference,
            "detail": compared.difference or compared.note,
        }

    # -- questions to both ------------------------------------------------------------------------

    async def _here(self, what: str, about: About) -> Found:
        return await asyncio.to_thread(self._answers.answer, what, about)

    async def _ask(self, what: str, about: About) -> _LeaderAndFollower:
        """Ask the leader first: a follower in step answers after it has applied all that the leader had then."""
        leader = await self._ask_leader(what, about)
        if self._peer.is_leader:
            return _LeaderAndFollower(leader, await self._here(what, about))
        return _LeaderAndFollower(leader, await self._peer.ask(what, about))

    async def _ask_leader(self, what: str, about: About) -> Found:
        return await (self._peer.ask if self._peer.is_leader else self._here)(what, about)

    def _is_in_step(self, both: _LeaderAndFollower) -> bool:
        return self._peer.state in IN_STEP and both.follower.get("state") in IN_STEP

    async def _names(self) -> set[str]:
        names: set[str] = set()
        for ask in (self._here, self._peer.ask):
            after, is_last = "", False
            while not is_last:
                found = await ask("bounds", {"after": after})
                logs = need_list(found, "logs", LogEntry)
                names.update(log.name for log in logs)
                after, is_last = (logs[-1].name if logs else ""), need(found, "is_last", bool) or not logs
        return names

    # -- one log --------------------------------------------------------------------------------

    async def _log(self, name: str) -> _Compared | None:
        """Return the row of one log; None if both nodes have deleted it."""
        both = await self._ask("bounds", {"path": name})
        leader = _log_of(both.leader)
        due = leader.next_offset if leader is not None else 0
        for pause_s in (*_PAUSES_S, None):
            compared = await self._bounds(name, both, due)
            if compared is None or not compared.difference or pause_s is None:
                break
            await asyncio.sleep(pause_s)
            both = await self._ask("bounds", {"path": name})
        if compared is None or compared.difference or compared.first_offset is None:
            return compared
        return await self._digests(name, compared)

    async def _bounds(self, name: str, both: _LeaderAndFollower, due: int) -> _Compared | None:
        """Return the range to compare, if the bounds agree; `due` is the end that a follower in step must have."""
        leader, follower = _log_of(both.leader), _log_of(both.follower)
        if leader is None or follower is None:
            return self._one_sided(both, leader, follower)
        first = max(leader.first_offset, follower.first_offset)
        end = min(leader.next_offset, follower.next_offset)
        ends = (
            f"{self._leader} ends at offset {leader.next_offset}, {self._follower} at {follower.next_offset}"
        )
        found = _Compared("", first, max(first, end), 0, 0)
        if follower.next_offset > leader.next_offset:
            # The leader may have sent more since it was asked; no other node can have sent it.
            leader = _log_of(await self._ask_leader("bounds", {"path": name}))
            if leader is None or leader.next_offset < follower.next_offset:
                return found._replace(difference=ends)
            return found
        if follower.next_offset < due and self._is_in_step(both):
            return found._replace(difference=ends)
        return found._replace(note=ends if follower.next_offset < leader.next_offset else "")

    def _one_sided(
        self, both: _LeaderAndFollower, leader: LogEntry | None, follower: LogEntry | None
    ) -> _Compared | None:
        for found, log, node in (
            (both.leader, leader, self._leader),
            (both.follower, follower, self._follower),
        ):
            if log is None and need(found, "on_disk", bool):
                return _Compared(
                    f"it is on the disk of {node} and cannot be used: see the log there, and scrub"
                )
        if leader is None and follower is None:
            return None
        lacks = f"{self._follower if follower is None else self._leader} does not have it"
        return _Compared(lacks) if self._is_in_step(both) else _Compared("", note=lacks)

    async def _digests(self, name: str, compared: _Compared) -> _Compared:
        """Compare this range of offsets, step by step."""
        first, end = compared.first_offset, compared.next_offset
        assert first is not None
        assert end is not None
        chunks = octets = 0
        note = compared.note
        for begin, until in pairwise(await asyncio.to_thread(self._answers.steps, name, first, end)):
            step = await self._step(name, begin, until)
            if isinstance(step, str):
                difference = f"offsets {begin} to {until}: {step}"
                return compared._replace(difference=difference, chunks=chunks, octets=octets)
            if step is None:
                note = "a part of it was dropped meanwhile"
                continue
            read = need(step, "octets", int)
            chunks, octets = chunks + need(step, "chunks", int), octets + read
            self.octets_done += read
        return compared._replace(chunks=chunks, octets=octets, note=note)

    async def _step(self, name: str, begin: int, until: int) -> Found | str | None:
        """Return the digest of these offsets, or the difference; None if one of the nodes has dropped them."""
        about: About = {"path": name, "from": begin, "to": until, "deep": self._deep}
        for pause_s in (*_PAUSES_S, None):
            here, there = await asyncio.gather(self._here("digest", about), self._peer.ask("digest", about))
            leader, follower = (there, here) if self._peer.is_leader else (here, there)
            difference = self._difference(leader, follower)
            if not difference:
                return leader
            logs = [_log_of(found) for found in await self._ask("bounds", {"path": name})]
            if not all(log and log.first_offset <= begin and until <= log.next_offset for log in logs):
                return None
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        return difference

    def _difference(self, leader: Found, follower: Found) -> str:
        for found, node in ((leader, self._leader), (follower, self._follower)):
            for why in ("damage", "gone"):
                if why in found:
                    return f"{node}: {found[why]}"
        if leader == follower:
            return ""
        return f"{_reported(self._leader, leader)}, {_reported(self._follower, follower)}"

    # -- state files --------------------------------------------------------------------------

    async def _files(self) -> dict[str, _Compared]:
        for pause_s in (*_PAUSES_S, None):
            both = await self._ask("files", {})
            compared = self._compare_files(both)
            if pause_s is None or not any(each.difference for each in compared.values()):
                break
            await asyncio.sleep(pause_s)
        return compared

    def _compare_files(self, both: _LeaderAndFollower) -> dict[str, _Compared]:
        leader = {file.name: file for file in need_list(both.leader, "files", FileEntry)}
        follower = {file.name: file for file in need_list(both.follower, "files", FileEntry)}
        compared = {}
        for name in sorted(leader.keys() | follower.keys()):
            octets = leader[name].octets if name in leader else follower[name].octets
            if leader.get(name) == follower.get(name):
                compared[name] = _Compared("", octets=octets)
                continue
            missing = self._follower if name not in follower else self._leader if name not in leader else ""
            what = f"{missing} does not have it" if missing else "its contents differ"
            in_step = self._is_in_step(both)
            compared[name] = _Compared(what if in_step else "", octets=octets, note=what)
        return compared


def _log_of(found: Found) -> LogEntry | None:
    logs = need_list(found, "logs", LogEntry)
    return logs[0] if logs else None


def _reported(node: str, found: Found) -> str:
    return (
        f"{node} has {found.get('chunks')} chunks of {found.get('octets')} octets, CRC-32 {found.get('crc')}"
    )
