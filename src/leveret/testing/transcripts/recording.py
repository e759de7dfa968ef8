"""Records what nodes say on their links, how the scopes of the links go on, and what is recorded in etcd: in words.

Cuts get small numbers in the order in which they are heard of, and logs the names of their queues. Signs of life, and
acks that were said before, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from leveret.core.replication.sender import WHOLE_NODE, ReplicationSender, SendEvent, SentScope
from leveret.model.errors import PeerError
from leveret.runtime.mirroring.copy_link import CopyLink
from leveret.runtime.mirroring.source_link import SourceLink
from leveret.runtime.replication.inbound import Inbound
from leveret.runtime.replication.outbound import Outbound
from leveret.testing.simulation.machine.process import current_process
from leveret.wire import link as wire
from leveret.wire.link import ChangeKind, LogChange, LogExtent, Type

_STRUCTS: Final[dict[Type, Any]] = {
    Type.INVENTORY: wire.Inventory,
    Type.PROBE: wire.ProbeHeaders,
    Type.HEADERS: wire.Headers,
    Type.COPIES: wire.MirrorInventory,
    Type.MIRRORING: wire.Mirroring,
    Type.RELEASED: wire.LogNames,
    Type.REPORT_AGAIN: wire.LogNames,
    Type.FAILED: wire.CopyFailed,
    Type.ACK: wire.Acked,
    Type.STREAMING: wire.Number,
    Type.TAKE_OVER: wire.Number,
    Type.HANDED_OVER: wire.Number,
}
_OFFSETS: Final = frozenset({ChangeKind.DROP, ChangeKind.BEGIN, ChangeKind.TRUNCATE, ChangeKind.CURSOR})


class LinkRecording:
    """See the module.

    Attributes:
        lines: what has happened since they were taken last.
    """

    def __init__(self, name_of: Callable[[str], str]) -> None:
        """`name_of` returns the name that a log has in the story; empty for one that is left out."""
        self.lines: list[str] = []
        self._name_of = name_of
        self._logs: dict[int, dict[int, str]] = {}
        self._cuts: dict[tuple[str, int], str] = {}
        """What a leader's cuts are called, by the leader and the number that it gave them."""
        self._cut_count = 0
        self._acked: dict[int, int] = {}
        self._peers: dict[int, str] = {}
        self._kept: list[object] = []
        """Links and scopes whose ids are known here: no other one is to get them."""

    def take(self) -> list[str]:
        """Return the lines, and forget them."""
        lines, self.lines = self.lines, []
        return lines

    def note(self, line: str) -> None:
        """Add a line, unless the last one says the same."""
        if not self.lines or self.lines[-1] != line:
            self.lines.append(line)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record, until the end of the block."""
        with ExitStack() as patches:
            for kind, name_of_peer in _ENDS.items():
                original: Any = kind.received

                def received(
                    link: Any,
                    kind: Type,
                    payload: memoryview,
                    original: Any = original,
                    name_of_peer: Callable[[Any], str] = name_of_peer,
                ) -> None:
                    self._heard(link, name_of_peer(link), kind, payload)
                    original(link, kind, payload)

                patches.enter_context(mock.patch.object(kind, "received", received))
            happens: Any = SentScope.happens
            begin: Any = ReplicationSender.begin

            def began(sender: ReplicationSender, name: str) -> SentScope:
                scope: SentScope = begin(sender, name)
                self._kept.append(scope)
                self._peers[id(scope)] = _short(sender._peer.rpartition(" ")[2])
                return scope

            def happened(scope: SentScope, event: SendEvent) -> None:
                before = scope.phase
                happens(scope, event)
                name = "all" if scope.name == WHOLE_NODE else self._name_of(scope.name)
                if name and scope.phase is not before:
                    self.note(f"{_here():<9} {name} at {self._peers[id(scope)]}: {before} -> {scope.phase}")

            patches.enter_context(mock.patch.object(SentScope, "happens", happened))
            patches.enter_context(mock.patch.object(ReplicationSender, "begin", began))
            yield

    # -- messages -----------------------------------------------------------------------------

    def _heard(self, link: object, peer: str, kind: Type, payload: memoryview) -> None:
        if id(link) not in self._logs:
            self._logs[id(link)] = {}
            self._kept.append(link)
        try:
            if isinstance(link, Outbound) and link.sending is not None:
                self._peers[id(link.sending.scope)] = peer
            is_leader = isinstance(link, SourceLink | Outbound)
            leader = _here() if is_leader else peer
            if kind is Type.FRAME:
                words = self._frame(link, leader, payload)
            else:
                words = self._message(link, leader, kind, payload)
        except PeerError as error:
            words = f"what is no {kind.name}: {error}"
        if words and peer:
            self.note(f"{peer} > {_here():<4} {words}")

    def _frame(self, link: object, leader: str, payload: memoryview) -> str:
        head, decoded = wire.decode_frame(payload, self._logs[id(link)])
        changes = list(filter(None, map(self._change, decoded())))
        if not changes:
            return ""
        return f"{self._cut(leader, head.position) or 'frame'}: {', '.join(changes)}"

    def _change(self, change: LogChange) -> str:
        name = self._name_of(change.name)
        if not name:
            return ""
        if change.chunk is not None:
            header = change.chunk.header
            where = "append to" if change.kind is ChangeKind.APPEND else "put in front of"
            return f"{where} {name} {_span(header.chunk_id, header.next_offset)}"
        at = f" at {change.offset}" if change.kind in _OFFSETS else ""
        return f"{change.kind.name.lower()} {name}{at}"

    def _message(self, link: object, leader: str, kind: Type, payload: memoryview) -> str:
        said = wire.decode(kind, payload, _STRUCTS[kind]) if kind in _STRUCTS else None
        match said:
            case wire.Acked(position):
                if position <= self._acked.get(id(link), 0):
                    return ""
                self._acked[id(link)] = position
                return f"ack {self._cut(leader, position)}"
            case wire.MirrorInventory(copies):
                logs_here = [text for copy in copies if (text := self._extent(copy.log))]
                return f"has {', '.join(logs_here)}" if logs_here else ""
            case wire.Inventory(logs):
                logs_here = [text for log in logs if (text := self._extent(log))]
                return f"has {', '.join(logs_here) or 'nothing'}"
            case wire.Mirroring(path) if self._name_of(path):
                return f"mirror {self._name_of(path)} as follows"
            case wire.LogNames(paths):
                names = ", ".join(name for path in paths if (name := self._name_of(path)))
                return names and f"{kind.name.lower().replace('_', ' ')} {names}"
            case wire.ProbeHeaders(path, before, _):
                return f"which chunks of {self._name_of(path)} begin before {before}?"
            case wire.Headers(path, headers):
                return f"{len(headers)} chunks of {self._name_of(path)}"
            case wire.CopyFailed(path):
                return f"cannot write {self._name_of(path)}"
            case wire.Number(number):
                about = (
                    f"in epoch {number}" if kind is Type.TAKE_OVER else f"from {self._cut(leader, number)} on"
                )
                return f"{kind.name.lower().replace('_', ' ')} {about}"
            case _:
                return ""

    def _extent(self, log: LogExtent) -> str:
        name = self._name_of(log.path)
        return name and f"{name} {_span(log.first_offset, log.next_offset)}"

    def _cut(self, leader: str, number: int) -> str:
        if not number:
            return ""
        if (leader, number) not in self._cuts:
            self._cut_count += 1
            self._cuts[leader, number] = f"cut {self._cut_count}"
        return self._cuts[leader, number]

    def forget(self, leader: str) -> None:
        """A node begins anew, and counts its cuts anew."""
        self._cuts = {key: name for key, name in self._cuts.items() if key[0] != leader}


def _here() -> str:
    process = current_process()
    return process.name if process is not None else "?"


def _span(first: int, end: int) -> str:
    return f"{first}-{end - 1}" if end > first else f"nothing from {first} on"


def _short(name: str) -> str:
    return name.partition("@")[0].removeprefix("leveret@")


_ENDS: Final[dict[Any, Callable[[Any], str]]] = {
    SourceLink: lambda link: _short(link.node),
    CopyLink: lambda link: _short(link.node),
    Outbound: lambda link: _short(link.follower.name) if link.follower is not None else "",
    Inbound: lambda link: _short(link.progress.leader.name) if link.progress.leader is not None else "",
}
