"""The store of an operator's decisions on schema replication, and the node that follows for all nodes of a site."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from leveret.core.schema.decisions import SchemaDecided
from leveret.core.schema.operating_mode import without_decisions
from leveret.model.errors import InvalidCommand
from leveret.storage.state_file import StateFile


class SchemaDecisionStore(Protocol):
    """The common decisions of all nodes of a site; `NodeSchemaDecisions`, or runtime.cluster.sites.schema_decisions."""

    @property
    def decided(self) -> SchemaDecided:
        """The decisions in force."""

    @property
    def follower(self) -> str:
        """The name of the node that follows the upstream; empty if no node does."""

    async def decide(self, change: Callable[[SchemaDecided], SchemaDecided]) -> None:
        """Store a decision, derived from the decision in force at the time of the write.

        After the return no node applies a delta under the previous decision.

        Raises:
            LeveretError: the decision cannot be stored, and is not in force.
        """


class NodeSchemaDecisions:
    """The decisions of a single node, in a state file."""

    def __init__(self, file: StateFile, node: str) -> None:
        """Read the stored decisions.

        Raises:
            StorageError: the file is damaged.
            InvalidCommand: the content of the file is invalid.
        """
        self.follower = node
        self._file = file
        try:
            kept = file.load(without_decisions("schema_definition_sync.operating_mode"))
            self.decided = msgspec.convert(kept, type=SchemaDecided)
        except msgspec.ValidationError as error:
            raise InvalidCommand(f"{file.path}: {error}") from None

    async def decide(self, change: Callable[[SchemaDecided], SchemaDecided]) -> None:
        """See SchemaDecisionStore."""
        decided = change(self.decided)
        on_loop = asyncio.get_running_loop().call_soon_threadsafe
        await asyncio.to_thread(self._file.save_in_thread, msgspec.to_builtins(decided), on_loop)
        self.decided = decided
