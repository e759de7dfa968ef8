"""Replies that wait for the definitions log, beside confirms that wait for the queues' logs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.applications.parcels import declare
from leveret.testing.servers.broker import LeveretProcess
from tests.e2e.site import Site, background

pytestmark = pytest.mark.story

DECLARATIONS: Final = 400


def test_declarations_are_answered_while_another_connection_is_confirmed(tmp_path: Path) -> None:
    """Without an answer pika gives up at its heartbeat, and this test with it."""
    seed = int(os.environ.get("LEVERET_SEED", "1"))
    with LeveretProcess() as node:
        site = Site(node, "/", tmp_path, seed)
        with site.channel() as channel:
            declare(channel, ["busy"])
            publisher = site.publisher(["busy"])
            with background(publisher):
                site.wait_confirmed(1)
                for number in range(DECLARATIONS):
                    channel.queue_declare(f"declared-{number}", durable=True)
                publisher.stop()
