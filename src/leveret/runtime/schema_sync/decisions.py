"""Where what an operator decided on schema replication is kept, and who of several nodes follows for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from leveret.core.schema.decisions import SchemaDecided
from leveret.model.errors import InvalidCommand
from leveret.storage.state_file import StateFile


class Deciding(Protocol):
    """What all nodes of a site agree on; `HereAlone`, or runtime.cluster.schema_decisions."""

    @property
    def decided(self) -> SchemaDecided:
        """What holds now."""

    @property
    def follower(self) -> str:
        """Name of the node that follows the upstream, if one is to; empty while there is none."""

    async def decide(self, change: Callable[[SchemaDecided], SchemaDecided]) -> None:
        """Have something else hold, after a restart too, made of what holds when it is this node's turn to say so.

        No node applies a delta by what held before once this returns.

        Raises:
            LeveretError: it cannot be kept, and does not hold.
        """


class HereAlone:
    """A node alone: a state file."""

    def __init__(self, file: StateFile, node: str) -> None:
        """Read what was decided.

        Raises:
            StorageError: the file is damaged.
            InvalidCommand: it holds something else than it should.
        """
        self.follower = node
        self._file = file
        try:
            self.decided = msgspec.convert(file.load(), type=SchemaDecided)
        except msgspec.ValidationError as error:
            raise InvalidCommand(f"{file.path}: {error}") from None

    async def decide(self, change: Callable[[SchemaDecided], SchemaDecided]) -> None:
        """See Deciding."""
        decided = change(self.decided)
        await asyncio.to_thread(self._file.save, msgspec.to_builtins(decided))
        self.decided = decided
