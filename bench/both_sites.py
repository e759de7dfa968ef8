"""Confirms that wait for the other site (`remote-dc-confirm`): their rate, and their latency beside the lag.

One run on two nodes: the runner has started the upstream, and this module makes the downstream. A confirm waits for the
lag, so the publisher's window is large; it is the same with the key and without. At a steady rate the ages of messages
at their confirms are compared with the lag of the standby in the same span, measured as in `bench.standby`.
"""

from __future__ import annotations

import json
import time
from typing import Final

from bench.contenders import LEVERET, Node
from bench.load import PublishJob
from bench.management import call
from bench.pacer import PaceJob
from bench.rows import Reading, Row, Scenario, Settings, Target
from bench.standby import (
    DOWNSTREAM,
    POLL_S,
    QUEUE,
    VHOST,
    Pair,
    Progress,
    lag_s,
)
from bench.workers import Worker, alone, sleep_until
from leveret.testing.network.ports import wait_until
from leveret.testing.servers.broker import LeveretProcess

WINDOW: Final = 200_000
RATE: Final = 1_000
SPANS: Final = 3
"""The paced span is so many times as long as others: a confirm takes the lag's half second."""
SHARE_MIN: Final = 0.5
READY_TIMEOUT_S: Final = 60.0
POLICY: Final = {
    "remote-dc-replicate": True,
    "remote-dc-confirm": True,
    "remote-dc-confirm-timeout": 120_000,
    "remote-dc-confirm-on-timeout": "nack",
}
"""A confirm without the other site would be a nack, which ends the run with an error."""


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    assert isinstance(node, LeveretProcess)
    with LeveretProcess(config=DOWNSTREAM, parent_dir=settings.folder) as downstream:
        pair = Pair(node, downstream)
        pair.connect()
        without = _rate(pair, settings)
        policy = json.dumps(POLICY)
        node.ctl("set_policy", "--vhost", VHOST, "standby", ".*", policy, "--apply-to", "queues")
        wait_until(lambda: _waits_for_the_other_site(node), "a downstream that reports", READY_TIMEOUT_S)
        both = _rate(pair, settings)
        found = {
            "both-sites": Reading(both, details={"without": without}),
            "both-sites-share": Reading(both / without, details={"without": without, "with": both}),
        }
        return found | _latency(pair, settings)


def _waits_for_the_other_site(node: LeveretProcess) -> bool:
    row = call(node, "GET", f"/api/queues/{VHOST}/{QUEUE}").json()
    return bool(row["remote_dc_confirm"]) and not row["remote_dc_confirm_unmet"]


def _rate(pair: Pair, settings: Settings) -> float:
    """Return the confirms a second of a full window, with the transfer beside it."""
    seconds = SPANS * settings.seconds
    job = PublishJob(
        pair.upstream.amqp_port, QUEUE, window=WINDOW, seconds=settings.warmup_s + seconds, vhost=VHOST
    )
    with Worker(job) as publisher:
        run = alone(pair.upstream, publisher, settings.warmup_s, seconds)
    pair.published += run.published
    pair.wait_transferred()
    return run.rate


def _latency(pair: Pair, settings: Settings) -> dict[str, Reading]:
    """Measure the ages of messages at their confirms, and the lag in the same span."""
    before = pair.published
    seen: Progress = []
    job = PaceJob(pair.upstream.amqp_port, QUEUE, rate=RATE, vhost=VHOST)
    with Worker(job, "bench.pacer") as publisher:
        publisher.ready().go()
        begun = time.monotonic()
        until = begun + settings.warmup_s + SPANS * settings.seconds
        while time.monotonic() < until:
            at, found = pair.progress()
            seen.append((at, found - before))
            sleep_until(at + POLL_S)
        publisher.end()
        result = publisher.result()
    pair.published += result.count
    ages = result.ages_us
    # Each message is sent when it is due.
    sent = [(begun, 0), (begun + result.count / RATE, result.count)]
    lags_s = sorted(lag_s(sent, at, have) for at, have in seen if begun < at < sent[-1][0])
    lag_ms = 1000 * lags_s[int(len(lags_s) * 0.99)]
    return {
        "both-sites-lag-p99": Reading(lag_ms, details={"p50": 1000 * lags_s[len(lags_s) // 2]}),
        "both-sites-p50": Reading(ages["p50"] / 1000, details=ages),
        "both-sites-p99": Reading(ages["p99"] / 1000, details=ages),
    }


BOTH_SITES: Final = Scenario(
    (
        Row(
            "both-sites",
            f"publish with confirms of both sites (`remote-dc-confirm`), 1000 B, window {WINDOW:,}",
            "msg/s",
            True,
        ),
        Row(
            "both-sites-share",
            "that rate by the rate without the key, in the same queue",
            "share",
            True,
            Target("value", SHARE_MIN),
        ),
        Row("both-sites-lag-p99", f"lag of the standby at {RATE:,} messages/s, p99", "ms", False),
        Row("both-sites-p50", f"from a publish to its confirm of both sites at {RATE:,}/s, p50", "ms", False),
        Row(
            "both-sites-p99",
            "the same, p99",
            "ms",
            False,
            Target("share", 1.0, "both-sites-lag-p99"),
        ),
    ),
    _run,
    once=True,
    brokers=(LEVERET,),
)
