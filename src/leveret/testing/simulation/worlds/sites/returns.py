"""Two simulated sites that take turns: the lost one comes back as a downstream of its successor, which is lost next.

Each site is a node, or a cluster whose leaders move and whose nodes die. The return is killed up to three times, and
asked for again at any node. All that was confirmed at the lost site, and is not at its successor, has to be among the
divergent messages of the one that came back.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pamqp import commands

from leveret.model import definitions as d
from leveret.model.errors import PreconditionFailed
from leveret.runtime.integrity.divergent import divergent_messages
from leveret.testing.applications.contents import is_shown, is_streamed, shown_number
from leveret.testing.applications.run_books import BookedMessage, BooksFault
from leveret.testing.simulation.applications.application import ANSWER_TIMEOUT_S
from leveret.testing.simulation.applications.client import ClientClosed, ClientDelivery, SimulatedClient
from leveret.testing.simulation.applications.operator import NeverConverged
from leveret.testing.simulation.worlds.sites.site import Site, change_at
from leveret.testing.simulation.worlds.sites.site_command import SiteCommand
from leveret.testing.simulation.worlds.sites.two_sites import (
    COLLECTED,
    FOLLOW_TIMEOUT_S,
    QUEUES,
    STREAM,
    SitesWorld,
)
from leveret.testing.simulation.worlds.world import START_TIMEOUT_S

_LOOKS_MAX: Final = 60


class ReturningWorld(SitesWorld):
    """See the module."""

    clusters = clusters_upstream = 0.5

    async def _play(self, seconds: float) -> int:
        self._seconds = seconds
        self._missing: list[BookedMessage] = []
        return await super()._play(seconds)

    async def heal(self) -> None:
        """See SitesWorld: after the first disaster the sites change their roles, and there is a second one."""
        await super().heal()
        await self._operator.spawn(self._bring_back())
        await self.harm(self._seconds / 2)
        await super().heal()

    async def look_at(self, promoted: Site) -> None:
        """See SitesWorld: compare the books at once, and note what the promoted site lacks."""
        found = {queue: await self._numbers(queue) for queue in QUEUES}
        self.books.judge(found)
        there = {(queue, number) for queue, numbers in found.items() for number in numbers}
        doubtful = [each for each in self.books.doubtful if each.queue in QUEUES]
        self._missing = [each for each in doubtful if not each.is_there(there)]

    async def _numbers(self, queue: str) -> list[int]:
        """Return the numbers of a queue's messages, in order; all stay there."""
        for _ in range(_LOOKS_MAX):
            client = await self.client()
            numbers: list[int] = []
            is_whole = False
            try:
                while isinstance(got := await _got(client, queue), ClientDelivery):
                    numbers.append(self.books.look_up(queue, got.message_id, got.body, got.properties).number)
                is_whole = True
            except (ClientClosed, TimeoutError):
                pass
            client.close()
            # They come back with the node's notice of the end.
            await asyncio.sleep(1.0)
            if is_whole:
                return numbers
        raise NeverConverged(f"queue {queue} cannot be looked at after the promotion")

    async def _bring_back(self) -> None:
        """Start the lost site again, and have it follow the other one."""
        returning = self.upstream
        self.upstream, self.downstream = self.downstream, returning
        self.story.note(f"-- site {returning.name} comes back")
        for node in returning.nodes:
            node.start()
        await self.until(
            lambda: len(returning.opened) == len(returning.nodes), "the lost site starts", START_TIMEOUT_S
        )
        self.begin_anew()
        await self.prepare_upstream()
        # A policy that was switched off at the end is an operator's to restore.
        policies = map(d.Put, self.policies(returning))
        await self.at(returning.opened[0], lambda node: change_at(node, *policies))
        await self.point(returning.opened[0])
        command = SiteCommand(self, returning, "return", _rejoin, returning.has_returned, self.chance)
        await command.run()
        await self.until(
            lambda: returning.follows(COLLECTED), "the site that came back follows", FOLLOW_TIMEOUT_S
        )
        self._judge_divergent(returning)

    def _judge_divergent(self, returned: Site) -> None:
        """Raise BooksFault if a message that only the lost site had is not among the divergent ones."""
        listed = {
            self._listed(row) for node in returned.nodes for row in divergent_messages(node.data_dir, None)
        }
        absent = [each for each in self._missing if not each.is_there(listed)]
        self.story.note(f"-- {len(listed)} divergent messages; {len(self._missing)} had to be listed")
        self.faults["divergent"] += len(self._missing)
        if absent:
            first = ", ".join(f"{each.number} of {each.queue}" for each in absent[:10])
            raise BooksFault(f"not listed: {len(absent)} messages that only the lost site had, first {first}")

    def _listed(self, row: dict[str, Any]) -> tuple[str, int]:
        """Return the queue and the number of a divergent message. Raises BooksFault: it was published otherwise."""
        place = (row["queue"], shown_number(row))
        message = self.books.messages.get(place)
        if message is None:
            return place
        if row["queue"] == STREAM:
            is_same = is_streamed(message.properties, row["properties"])
        else:
            is_same = is_shown(message.properties, message.body, row)
        if not is_same:
            raise BooksFault(f"altered: {row} is listed as divergent")
        return place


async def _rejoin(node: Any) -> None:
    """Give the command as an operator does who reads why it is refused."""
    try:
        await node.rejoin.rejoin()
    except PreconditionFailed as error:
        if "--set-all-aside" not in str(error):
            raise
        # The other site was promoted before it had any record of this one.
        await node.rejoin.rejoin(set_all_aside=True)


async def _got(client: SimulatedClient, queue: str) -> object:
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        return await client.call(commands.Basic.Get(0, queue))
