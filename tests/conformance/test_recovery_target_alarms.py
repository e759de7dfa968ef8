"""Recovering into a broker whose alarm blocks publishers in the middle, and that confirms in an order of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from leveret.pipeline.archive.recovery_plan import PlanDirectory
from leveret.pipeline.jobs.job import AmqpTarget, LoginCredentials
from leveret.pipeline.recovery.publish import PlanPublisher
from leveret.pipeline.target_broker.confirms import UnconfirmedTags
from leveret.pipeline.target_broker.connection import AmqpConnection
from leveret.pipeline.target_broker.publish import WINDOW, AmqpClient
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.conformance.brokers import Broker, running
from tests.conformance.conftest import BROKERS, kind_of
from tests.conformance.test_recovery_target import bodies_of, in_doubt, numbers

VHOST: Final = "/"
MESSAGES: Final = 2 * WINDOW + 500
"""More than are in flight when the alarm begins, and as many again."""
ALARM_AT: Final = 1_300
"""The message before which the alarm begins: some are confirmed by then, and some are in flight."""
TIMEOUT_S: Final = 3.0
"""The client's patience with a broker that does not say why it is silent."""
DELIVERY_MODE: Final = b"\x10\x00"
"""The flags of properties that have a delivery mode only."""
ALARMS: Final = {
    "memory": (("set_vm_memory_high_watermark", "0.0000001"), ("set_vm_memory_high_watermark", "0.4")),
    "disk": (("set_disk_free_limit", "1000000GB"), ("set_disk_free_limit", "1MB")),
}


@pytest.fixture(scope="module", params=BROKERS)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker of its own: should an alarm stay, no publisher of another test waits for its end."""
    with running(kind_of(request)) as one:
        yield one


def planned(folder: Path, queue: str, modes: tuple[int, ...], padding: int) -> PlanDirectory:
    """A plan of messages with these delivery modes in turns."""
    upstream = StandbyUpstream([VHOST])
    for first in range(0, MESSAGES, 100):
        upstream.publish(
            VHOST,
            queue,
            [
                stored_message(
                    b"%d." % number + b"x" * padding,
                    properties=DELIVERY_MODE + bytes((modes[number % len(modes)],)),
                )
                for number in range(first, first + 100)
            ],
        )
    directory = freeze_plan(transfer(upstream, folder), VHOST)
    assert directory is not None
    return directory


def publish(broker: Broker, directory: PlanDirectory, on_blocked: Callable[[str], None]) -> None:
    credentials = LoginCredentials(username="guest", password="guest")
    target = AmqpTarget(host=LOOPBACK, port=broker.amqp_port, credentials=credentials)
    totals = directory.load().queues

    def client() -> AmqpClient:
        return AmqpClient(target, VHOST, directory.progress, totals, TIMEOUT_S, on_blocked=on_blocked)

    [outcome] = PlanPublisher(directory, client, lambda messages: None).publish(sorted(totals))
    assert outcome.messages == MESSAGES


@pytest.mark.story
@pytest.mark.parametrize(
    ("alarm", "padding"), [("memory", 10), ("disk", 20_000)], ids=["memory-small", "disk-large"]
)
def test_an_alarm_in_the_middle_is_told_and_waited_for_and_nothing_is_lost_or_double(
    broker: Broker,
    channel: Any,
    queue: str,
    tmp_path: Path,
    alarm: str,
    padding: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = planned(tmp_path, queue, (2,), padding)
    begin, end = ALARMS[alarm]
    sent, said = [0], list[str]()
    over = threading.Event()
    send = AmqpConnection.publish

    def counted(self: AmqpConnection, *message: Any) -> None:
        sent[0] += 1
        if sent[0] == ALARM_AT:
            broker.ctl(*begin)
        send(self, *message)

    def end_it() -> None:
        wait_until(lambda: bool(said), "the broker's word", 60)
        # Longer than a broker is waited for that gives no reason.
        over.wait(2 * TIMEOUT_S)
        broker.ctl(*end)

    monkeypatch.setattr(AmqpConnection, "publish", counted)
    ending = threading.Thread(target=end_it)
    ending.start()
    try:
        publish(broker, directory, said.append)
    finally:
        over.set()
        ending.join()
        broker.ctl(*end)
    assert (len(said), said[-1]) == (2, "")
    assert alarm in said[0], "the reason names the alarm"
    assert sent[0] == MESSAGES, "none was sent twice"
    assert numbers(bodies_of(channel, queue)) == list(range(MESSAGES))
    assert in_doubt(directory) == 0


@pytest.mark.story
def test_confirms_in_the_order_that_a_broker_has_for_messages_of_both_kinds_are_all_counted(
    broker: Broker, channel: Any, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker may confirm transient messages at once, and persistent ones between them after its disk has them."""
    directory = planned(tmp_path, queue, (2, 1, 1, 2, 1), 100)
    settled: list[tuple[int, bool]] = []
    settle = UnconfirmedTags.settle

    def noted(self: UnconfirmedTags[Any], tag: int, *, multiple: bool, taken: bool) -> None:
        settled.append((tag, multiple))
        settle(self, tag, multiple=multiple, taken=taken)

    monkeypatch.setattr(UnconfirmedTags, "settle", noted)
    publish(broker, directory, lambda reason: None)
    highest, early = 0, 0
    for tag, multiple in settled:
        early += multiple and tag < highest
        highest = max(highest, tag)
    print(f"{broker.kind}: {len(settled)} confirms, {early} of several messages after one of a later message")
    assert numbers(bodies_of(channel, queue)) == list(range(MESSAGES))
    assert in_doubt(directory) == 0
