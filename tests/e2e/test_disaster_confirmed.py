"""Queues whose confirms wait for the other site lose nothing confirmed when a site is lost under load.

LEVERET_SEED sets another moment of disaster; it is printed.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

import pytest

from leveret.testing.applications.applications import drain
from leveret.testing.applications.mixed_messages import declare
from leveret.testing.network.ports import wait_until
from leveret.testing.sites.standby_pair import StandbyPair, get
from tests.e2e.site import PATIENCE_S, Site, background

pytestmark = [pytest.mark.spark, pytest.mark.torture, pytest.mark.timeout(600)]

VHOST: Final = "orders"
SAFE: Final = ("payments", "voted")
POLICY: Final = {
    "remote-dc-replicate": True,
    "remote-dc-confirm": True,
    "remote-dc-confirm-timeout": 120_000,
    "remote-dc-confirm-on-timeout": "nack",
}


def answers(pair: StandbyPair, queue: str) -> dict[str, Any]:
    """How the confirms of a queue do at the upstream."""
    row: dict[str, Any] = get(pair.upstream, f"queues/{VHOST}/{queue}")
    return row


def test_no_confirmed_message_is_lost_with_a_site_under_load(tmp_path: Path, chance: random.Random) -> None:
    least = chance.randrange(1000, 6000)
    with StandbyPair(VHOST, tmp_path) as pair:
        site = Site(pair.upstream, VHOST, tmp_path, chance.randrange(1 << 30))
        pair.start()
        policy = ["--vhost", VHOST, "safe", f"^({'|'.join(SAFE)}|beacon)$", json.dumps(POLICY)]
        pair.upstream.ctl("set_policy", *policy, "--apply-to", "queues")
        with site.channel() as channel:
            declare(channel, SAFE[:1])
            declare(channel, SAFE[1:], {"x-queue-type": "quorum"})
        pair.follow(timeout_s=300)
        wait_until(
            lambda: not answers(pair, SAFE[0])["remote_dc_confirm_unmet"],
            "a downstream that reports",
            PATIENCE_S,
        )
        publishers = [site.publisher([queue]) for queue in SAFE]
        with background(*publishers):
            site.wait_confirmed(least)
            waiting = [answers(pair, queue)["remote_dc_confirms_waiting"] for queue in SAFE]
            pair.upstream.kill9()
        numbers = site.account().confirmed.keys()
        confirmed = {
            queue: {each.number for each in site.published if each.queue == queue and each.number in numbers}
            for queue in SAFE
        }
        promoted = pair.promote()
        assert promoted.returncode == 0, promoted.stderr
        for queue in SAFE:
            found = [taken.number for taken in drain(pair.downstream.amqp_port, VHOST, queue)]
            lost = confirmed[queue] - set(found)
            print(
                f"{queue}: confirmed {len(confirmed[queue])}, recovered {len(found)}, lost {len(lost)}, {waiting=}"
            )
            assert not lost, f"{len(lost)} of {len(confirmed[queue])} confirmed messages of {queue} are lost"
            assert len(found) == len(set(found)), "doubled"
