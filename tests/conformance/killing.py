"""A recovery into another broker whose publishing process dies on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.pipeline.target_broker.connection import AmqpConnection


class Killed(Exception):
    """The publishing process dies here."""


def killed_after(
    sent: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object], *, closes: bool = True
) -> None:
    """Do the work until so many messages were sent; its connection is closed then, or left as it is."""
    send, left = AmqpConnection.publish, [sent]

    def dying(self: AmqpConnection, *message: Any) -> None:
        if not left[0]:
            if closes:
                self._socket.close()
            raise Killed
        left[0] -= 1
        send(self, *message)

    with monkeypatch.context() as patch:
        patch.setattr(AmqpConnection, "publish", dying)
        with pytest.raises(Killed):
            work()
