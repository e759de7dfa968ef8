from __future__ import annotations

import dataclasses

import pytest

from bench.mixed import declared, published_and_consumed
from bench.rows import Settings
from bench.traffic import Load
from leveret.testing.servers.broker import LeveretProcess

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    "load",
    [
        Load(queues=3, kind="fanout", publishers=2, consumers=2),
        Load(consumers=5, prefetch=10, ack_every=1, ordered=False, body_bytes=(500, 500)),
        Load(body_bytes=(300_000, 400_000), window=20),
        Load(mixed=False, queues=2, body_bytes=(16, 16)),
    ],
    ids=["fanout", "several-consumers", "large", "alike"],
)
def test_what_is_published_is_delivered_and_checked(
    load: Load, leveret: LeveretProcess, tiny: Settings
) -> None:
    with declared(leveret.amqp_port, load):
        run = published_and_consumed(leveret, load, dataclasses.replace(tiny, seconds=1.0))
    assert run.rate > 0
