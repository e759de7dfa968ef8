"""The applications of a torture of the cluster: they work at any node, and are replaced when theirs is gone."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from leveret.testing.applications.applications import AppConsumer, AppPublisher, TxConsumer
from leveret.testing.applications.contents import number_of
from tests.e2e.site import ENDLESS, PATIENCE_S, Door, Site

Application = AppPublisher | AppConsumer


class CrewConsumer(TxConsumer):
    """Several publish to a queue, and order is a matter of each; so each is looked at by itself."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As Consumer."""
        super().__init__(*arguments, **named)
        self._last: dict[tuple[str, int], int] = defaultdict(lambda: -1)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        number = number_of(properties.message_id, body)
        self._batch.append((method.delivery_tag, number))
        if not method.redelivered:
            origin = (method.consumer_tag, number // ENDLESS)
            self.disordered += number < self._last[origin]
            self._last[origin] = number


class Crew:
    """Applications at work, each at a node of its own choice; who ends is followed by another."""

    def __init__(self, apps: Site, chance: random.Random) -> None:
        self._apps = apps
        self._chance = chance
        self._roles: list[Callable[[], Application]] = []
        self._at_work: list[tuple[Application, threading.Thread] | None] = []
        self._ended: list[Application] = []

    def hire(self, *roles: Callable[[], Application]) -> None:
        """What there is to do; `tend` has somebody do it."""
        self._roles += roles
        self._at_work += [None] * len(roles)

    def tend(self, nodes: Sequence[Door]) -> None:
        """Have everything done at one of these nodes that nobody does."""
        for index, role in enumerate(self._roles):
            current = self._at_work[index]
            if current is not None and current[1].is_alive():
                continue
            if current is not None:
                self._ended.append(current[0])
            self._apps.move_to(self._chance.choice(nodes))
            application = role()
            thread = threading.Thread(target=application.run, daemon=True)
            thread.start()
            self._at_work[index] = (application, thread)

    def end(self) -> int:
        """Have all end in order, everything confirmed; returns how many messages came out of order."""
        at_work = [each for each in self._at_work if each is not None]
        for application, _ in at_work:
            application.stop()
        for application, thread in at_work:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "an application does not end: is it blocked, or a confirm missing?"
            self._ended.append(application)
        disordered = sum(each.disordered for each in self._ended if isinstance(each, AppConsumer))
        self._roles, self._at_work, self._ended = [], [], []
        return disordered
