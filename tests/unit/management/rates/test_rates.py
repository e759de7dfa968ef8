from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from leveret.core.broker.broker import Broker
from leveret.management.rates.history import Range, SampleRanges
from leveret.management.rates.rates import Rates
from leveret.model.definitions import Delete, Put, Queue, Vhost

INTERVAL_MS = 5000


class Sampled:
    """A broker whose rates are sampled when the test says."""

    def __init__(self) -> None:
        self.broker = Broker(lambda queue, offset: [])
        self.broker.apply(Put(Vhost(name="/")))
        self.streams: list[Any] = []
        self.memory = 100
        self.tick = 0
        self.rates = Rates(
            self.broker,
            lambda: self.streams,
            ("mem_used",),
            lambda: (self.memory,),
            interval_ms=INTERVAL_MS,
            now_ms=0,
        )

    def sample(self) -> None:
        self.tick += 1
        for _ in self.rates.tick(self.tick * INTERVAL_MS + 3):
            pass

    def declare(self, name: str, vhost: str = "/") -> Any:
        return self.broker.declare_queue(Queue(name=name, vhost=vhost))


@pytest.fixture
def sampled() -> Sampled:
    return Sampled()


def test_a_queue_tells_what_it_took_and_gave(sampled: Sampled) -> None:
    queue = sampled.declare("q")
    sampled.sample()
    queue.counters.publish += 10
    queue.counters.deliver += 5
    queue.counters.get_no_ack += 5
    sampled.sample()
    shown = sampled.rates.queue(queue)
    stats = shown["message_stats"]
    assert (stats["publish"], stats["publish_details"]) == (10, {"rate": 2.0})
    assert (stats["deliver_get"], stats["deliver_get_details"]) == (10, {"rate": 2.0})
    assert (stats["ack"], stats["ack_details"]) == (0, {"rate": 0.0})
    assert shown["messages_details"] == {"rate": 0.0}


def test_a_queue_to_which_nothing_happened_has_no_message_stats(sampled: Sampled) -> None:
    queue = sampled.declare("q")
    sampled.sample()
    assert "message_stats" not in sampled.rates.queue(queue)
    queue.counters.publish += 1
    assert set(sampled.rates.queue(queue)["message_stats"]) == {"publish", "publish_details"}


def test_what_was_never_sampled_is_told_without_a_rate(sampled: Sampled) -> None:
    queue = sampled.declare("q")
    queue.counters.publish += 10
    wanted = SampleRanges(msg_rates=Range(5000, 5000))
    assert sampled.rates.queue(queue)["message_stats"]["publish_details"] == {"rate": 0.0}
    samples = sampled.rates.queue(queue, wanted)["message_stats"]["publish_details"]["samples"]
    assert [each["sample"] for each in samples] == [10, 0]


def test_an_exchange_tells_what_came_in_and_went_out(sampled: Sampled) -> None:
    state = sampled.broker.topologies["/"].exchanges["amq.fanout"]
    sampled.sample()
    state.counters.publish_in += 5
    sampled.sample()
    expected = {"message_stats": {"publish_in": 5, "publish_in_details": {"rate": 1.0}}}
    assert sampled.rates.exchange(state) == expected


def test_a_connection_tells_its_octets(sampled: Sampled) -> None:
    connection = SimpleNamespace(vhost="/", octets_received=0, octets_sent=100)
    sampled.streams.append(connection := type("Peer", (), vars(connection))())
    sampled.sample()
    connection.octets_received += 50
    sampled.sample()
    shown = sampled.rates.connection(connection)
    assert (shown["recv_oct"], shown["recv_oct_details"], shown["send_oct"]) == (50, {"rate": 10.0}, 100)
    assert sampled.rates.vhost("/")["recv_oct_details"] == {"rate": 10.0}


def test_deliveries_of_a_deleted_queue_stay_in_those_of_its_virtual_host(sampled: Sampled) -> None:
    queue = sampled.declare("q")
    queue.counters.ack += 7
    sampled.sample()
    sampled.broker.delete_queue(queue)
    sampled.sample()
    assert sampled.rates.vhost("/")["message_stats"]["ack"] == 7
    assert sampled.rates.overview(["/"])["message_stats"]["ack"] == 7


def test_the_overview_is_over_the_virtual_hosts_that_are_seen(sampled: Sampled) -> None:
    sampled.broker.apply(Put(Vhost(name="other")))
    for vhost, count in (("/", 3), ("other", 4)):
        sampled.declare("q", vhost).counters.ack += count
    sampled.sample()
    seen = {name: sampled.rates.overview(name) for name in (("/",), ("/", "other"), ("gone",))}
    assert seen[("/",)]["message_stats"]["ack"] == 3
    assert seen[("/", "other")]["message_stats"]["ack"] == 7
    assert "message_stats" not in seen[("gone",)]
    assert seen[("gone",)]["queue_totals"]["messages"] == 0


def test_a_virtual_host_that_is_gone_is_forgotten(sampled: Sampled) -> None:
    sampled.broker.apply(Put(Vhost(name="other")))
    sampled.declare("q", "other").counters.ack += 4
    sampled.sample()
    sampled.broker.apply(Delete("vhosts", ("other",)))
    sampled.sample()
    assert "message_stats" not in sampled.rates.overview(["/", "other"])


def test_what_is_there_at_the_start_is_no_burst(sampled: Sampled) -> None:
    sampled.declare("q").counters.ack += 1000
    sampled.sample()
    assert sampled.rates.overview(["/"])["message_stats"]["ack_details"] == {"rate": 0.0}


def test_queues_that_come_and_go_are_churn(sampled: Sampled) -> None:
    sampled.sample()
    queue = sampled.declare("q")
    sampled.declare("q")
    sampled.broker.delete_queue(queue)
    sampled.sample()
    churn = sampled.rates.overview(["/"])["churn_rates"]
    assert (churn["queue_declared"], churn["queue_created"], churn["queue_deleted"]) == (2, 1, 1)
    assert churn["queue_declared_details"] == {"rate": 0.4}


def test_the_node_tells_how_its_process_changes(sampled: Sampled) -> None:
    sampled.sample()
    sampled.memory += 10
    sampled.sample()
    assert sampled.rates.node() == {"mem_used": 110, "mem_used_details": {"rate": 2.0}}


def test_two_samples_within_an_interval_are_one(sampled: Sampled) -> None:
    queue = sampled.declare("q")
    sampled.sample()
    queue.counters.publish += 5
    assert list(sampled.rates.tick(INTERVAL_MS + 9)) == []
    sampled.sample()
    assert sampled.rates.queue(queue)["message_stats"]["publish_details"] == {"rate": 1.0}


def test_sampling_many_queues_lets_others_work_in_between(sampled: Sampled) -> None:
    for number in range(1001):
        sampled.declare(f"q{number}")
    assert len(list(sampled.rates.tick(INTERVAL_MS))) == 2 * (1001 // 50), "their counts, and their consumers"


@pytest.mark.parametrize(("capacity", "expected"), [(1, 1.0), (0, 0.0)])
def test_utilisation_is_how_often_a_message_found_a_consumer(
    sampled: Sampled, capacity: int, expected: float
) -> None:
    waiting = SimpleNamespace(
        consumers=[SimpleNamespace(capacity=lambda: capacity)], ready_count=1, is_remote=False
    )
    queue: Any = type("Waiting", (), vars(sampled.declare("q")) | vars(waiting))()
    queue.unsettled_count, queue.delivered_count, queue.kept_count = 1, 0, 0
    sampled.broker.queues["/", "q"] = queue
    assert sampled.rates.consumer_utilisation(queue) == 1.0
    sampled.sample()
    assert sampled.rates.consumer_utilisation(queue) == expected
    queue.consumers = []
    assert sampled.rates.consumer_utilisation(queue) == 0.0


def test_a_history_that_is_forgotten_begins_anew_with_the_next_sample(sampled: Sampled) -> None:
    queue = sampled.declare("q")
    sampled.sample()
    queue.counters.publish += 10
    sampled.sample()
    wanted = SampleRanges(lengths=Range(10_000, 5_000), msg_rates=Range(10_000, 5_000))
    before = sampled.rates.queue(queue, wanted)["message_stats"]["publish_details"]["samples"]
    assert [each["sample"] for each in before] == [10, 0, 0]
    sampled.rates.forget()
    assert sampled.rates.queue(queue, wanted)["message_stats"]["publish_details"]["samples"] == before
    sampled.sample()
    queue.counters.publish += 4
    sampled.sample()
    shown = sampled.rates.queue(queue, wanted)["message_stats"]
    assert [each["sample"] for each in shown["publish_details"]["samples"]] == [14, 10, 0]
    assert sampled.rates.overview(["/"])["queue_totals"]["messages"] == 0


def test_plots_begin_with_the_first_sample_and_have_gaps_where_none_was_taken(sampled: Sampled) -> None:
    queue = sampled.declare("q")
    sampled.sample()
    queue.counters.deliver += 5
    sampled.sample()
    sampled.tick += 5
    sampled.sample()
    rows = sampled.rates.plots(["/"], Range(60_000, INTERVAL_MS))
    assert [(row[0], row[2]) for row in rows] == [(5_000, None), (10_000, 1.0), (40_000, None)]
    assert sampled.rates.plots([], Range(60_000, INTERVAL_MS))[-1][3] == 0


def test_the_first_row_of_plots_has_a_rate_if_there_is_a_sample_before_it(sampled: Sampled) -> None:
    queue = sampled.declare("q")
    for _ in range(4):
        queue.counters.deliver += 5
        sampled.sample()
    rows = sampled.rates.plots(["/"], Range(INTERVAL_MS, INTERVAL_MS))
    assert [(row[0], row[2]) for row in rows] == [(15_000, 1.0), (20_000, 1.0)]
