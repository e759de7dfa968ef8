"""The message rates of the HTTP API, from samples of counts every few seconds.

A resource asks for one object's rates and merges them into its own answer:

    rates.queue(queue, ranges)            message_stats, messages, messages_ready, ... with details
    rates.channel(channel, ranges)        message_stats
    rates.exchange(state, ranges)         message_stats
    rates.connection(connection, ranges)  recv_oct, send_oct with details
    rates.vhost(name, ranges)             message_stats, messages, recv_oct, ... with details
    rates.overview(vhosts, ranges)        message_stats, queue_totals, churn_rates
    rates.node(ranges)                    mem_used, fd_used, ... with details
    rates.plots(vhosts, range)            rows for the console's plots
    rates.consumer_utilisation(queue)     from 0.0 to 1.0

`message_stats` has a part (published, delivered) once its counts are not 0, and is left out before. `ranges` is
`ranges_of(request.query_params)`; without a range an answer has counts and rates only. Counts of one object are
current, sums and rates are of the newest tick.

Nothing here waits or reads a clock: the server calls `tick`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter
from typing import Any, Final

from leveret.core.broker.broker import Broker
from leveret.core.broker.limits import OtherConnection
from leveret.core.broker.topology import ExchangeState
from leveret.core.queues.queue import Queue
from leveret.management.rates.history import (
    DAY,
    NO_RANGES,
    Block,
    Range,
    RateHistory,
    SampleRanges,
    SummedHistory,
    Values,
    show,
)
from leveret.management.rates.kinds import ROWS_MAX, SLICE, RatedKind, Sums
from leveret.management.rates.plots import OWN, UNKNOWN, Gap, Row, SummedColumns, plot_rows
from leveret.session.amqp091.channel import Channel
from leveret.session.amqp091.connection import ClientConnection

PUBLISHED: Final = ("publish", "confirm", "return_unroutable", "drop_unroutable")
DELIVERED: Final = (
    "ack",
    "deliver",
    "deliver_no_ack",
    "get",
    "get_empty",
    "get_no_ack",
    "redeliver",
    "deliver_get",
)
LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
OCTETS: Final = ("recv_oct", "send_oct")
CHURN: Final = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)

_STATS: Final = "message_stats"
_QUEUE: Final = (
    Block(LENGTHS, 0, "", "lengths", always=True),
    Block(("publish",), 3, _STATS, "msg_rates"),
    Block(DELIVERED, 4, _STATS, "msg_rates"),
)
_CHANNEL: Final = (Block(PUBLISHED, 0, _STATS, "msg_rates"), Block(DELIVERED, 4, _STATS, "msg_rates"))
_EXCHANGE: Final = (
    Block(("publish_in",), 0, _STATS, "msg_rates"),
    Block(("publish_out",), 1, _STATS, "msg_rates"),
)
_CONNECTION: Final = (Block(OCTETS, 0, "", "data_rates", always=True),)
_VHOST: Final = (
    Block(LENGTHS, 0, "", "lengths", always=True),
    Block(PUBLISHED, 3, _STATS, "msg_rates"),
    Block(DELIVERED, 7, _STATS, "msg_rates"),
    Block(OCTETS, 15, "", "data_rates", always=True),
)
_VHOST_WIDTH: Final = 17
_OVERVIEW: Final = (_VHOST[0]._replace(under="queue_totals"), *_VHOST[1:3])
_CHURN: Final = (Block(CHURN, 0, "churn_rates", "data_rates", always=True),)
_PLOTTED: Final = SummedColumns(messages=0, publish=3, deliver_get=14)
_GAPS_MAX: Final = 100
_GAP_INTERVALS: Final = 3
"""So many intervals without a sample are a gap: the node's process stood still, or its machine did."""
_UTILISATION_WEIGHT: Final = 0.3

_published: Final[Callable[[object], Values]] = attrgetter(*PUBLISHED)
_delivered: Final[Callable[[object], Values]] = attrgetter(*DELIVERED)
_churn: Final[Callable[[object], Values]] = attrgetter(*CHURN)
_exchanged: Final[Callable[[object], Values]] = attrgetter("publish_in", "publish_out")


class Rates:
    """All histories of a node; see the module.

    Attributes:
        interval_ms: the time between two samples.
        tick_ms: the time of the last sample.
    """

    def __init__(
        self,
        broker: Broker,
        other_connections: Callable[[], Iterable[Any]],
        node_names: tuple[str, ...],
        node_values: Callable[[], Values],
        *,
        interval_ms: int,
        now_ms: int,
        plotted: Callable[[], Values] = lambda: (UNKNOWN,) * len(OWN),
    ) -> None:
        """Begin without samples.

        Args:
            broker: the sampled broker.
            other_connections: lists the connections other than AMQP 0-9-1's.
            node_names: the names of the sampled values of the process and its machine.
            node_values: reads these values.
            interval_ms: the interval of `tick`.
            now_ms: the time.
            plotted: reads what the node measures for plots, see `plots.OWN`.
        """
        self.interval_ms = interval_ms
        self._plotted = plotted
        self._broker = broker
        self._other_connections = other_connections
        self._node_block = (Block(node_names, 0, "", "node_stats", always=True),)
        self._node_values = node_values
        self._begin(now_ms)

    def _begin(self, now_ms: int) -> None:
        """Begin without histories."""
        self._is_forgotten = False
        self.tick_ms = self._begun_ms = now_ms
        self._gaps: deque[Gap] = deque(maxlen=_GAPS_MAX)
        self._own = RateHistory(self._plotted(), now_ms)
        # In a cluster each node counts the queues that it leads.
        self._queues = RatedKind(self._broker.led_queues, _queue_values)
        self._channels = RatedKind(self._live_channels, _channel_values)
        self._exchanges = RatedKind(self._live_exchanges, _exchange_values)
        self._connections = RatedKind[Any](self._live_connections, _octets)
        self._vhosts: dict[str, Sums] = {}
        self._churn = RateHistory(_churn(self._broker.churn), now_ms)
        self._node = RateHistory(self._node_values(), now_ms)
        self._utilisation: dict[Queue, float] = {}

    # -- sampling -----------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Iterator[None]:
        """Sample everything, in slices; exhaust it before the next."""
        now_ms -= now_ms % self.interval_ms
        if now_ms <= self.tick_ms:
            return
        if self._is_forgotten:
            self._begin(now_ms - self.interval_ms)
        self._vhosts = {
            name: self._vhosts.get(name) or Sums(_VHOST_WIDTH) for name in self._broker.topologies
        }
        step = (now_ms, self.interval_ms)
        yield from self._queues.tick(*step, self._queue_moved, self._queue_gone)
        yield from self._channels.tick(*step, self._channel_moved, _ignore)
        yield from self._connections.tick(*step, self._connection_moved, _ignore)
        yield from self._exchanges.tick(*step, _ignore, _ignore)
        for sums in self._vhosts.values():
            sums.tick(*step)
        self._churn.add(_churn(self._broker.churn), *step, DAY, ROWS_MAX)
        self._node.add(self._node_values(), *step, DAY, ROWS_MAX)
        self._own.add(self._plotted(), *step, DAY, ROWS_MAX)
        if now_ms - self.tick_ms >= _GAP_INTERVALS * self.interval_ms:
            self._gaps.append(Gap(self.tick_ms, now_ms))
        self.tick_ms = now_ms
        yield from self._sample_consumers()

    def forget(self) -> None:
        """Begin anew with the next tick, between two samples."""
        self._is_forgotten = True

    def _queue_moved(self, queue: Queue, change: list[int]) -> None:
        if sums := self._vhosts.get(queue.key[0]):
            sums.add(0, change[:3])
            sums.add(7, change[4:])

    def _queue_gone(self, queue: Queue, last: Values) -> None:
        if sums := self._vhosts.get(queue.key[0]):
            sums.add(0, [-length for length in last[:3]])

    def _channel_moved(self, channel: Channel, change: list[int]) -> None:
        if sums := self._vhosts.get(channel.connection.vhost or ""):
            sums.add(3, change[:4])

    def _connection_moved(self, connection: Any, change: list[int]) -> None:
        if sums := self._vhosts.get(connection.vhost or ""):
            sums.add(15, change)

    def _sample_consumers(self) -> Iterator[None]:
        """Sample whether each queue's consumers could take messages; newer ticks have more weight."""
        sampled: dict[Queue, float] = {}
        for count, queue in enumerate(list(self._broker.queues.values()), 1):
            if queue.consumers:
                served = float(not queue.ready_count or any(each.capacity() > 0 for each in queue.consumers))
                last = self._utilisation.get(queue, served)
                sampled[queue] = last + (served - last) * _UTILISATION_WEIGHT
            if not count % SLICE:
                yield
        self._utilisation = sampled

    def _live_channels(self) -> list[Channel]:
        return [
            channel
            for connection in self._broker.connections
            for channel in getattr(connection, "channels", {}).values()
        ]

    def _amqp_connections(self) -> list[Any]:
        return [each for each in self._broker.connections if not isinstance(each, OtherConnection)]

    def _live_connections(self) -> list[Any]:
        return [*self._amqp_connections(), *self._other_connections()]

    def _live_exchanges(self) -> list[ExchangeState]:
        return [
            state for topology in self._broker.topologies.values() for state in topology.exchanges.values()
        ]

    # -- what resources ask -------------------------------------------------------------------

    def queue(self, queue: Queue, ranges: SampleRanges = NO_RANGES) -> dict[str, Any]:
        """See the module."""
        return self._queues.show(queue, _QUEUE, ranges, self.tick_ms)

    def channel(self, channel: Channel, ranges: SampleRanges = NO_RANGES) -> dict[str, Any]:
        """See the module."""
        return self._channels.show(channel, _CHANNEL, ranges, self.tick_ms)

    def queue_idle_since_ms(self, queue: Queue) -> int | None:
        """The tick since which a queue was idle; None if it was not idle at the last one."""
        return self._queues.unchanged_since_ms(queue)

    def channel_idle_since_ms(self, channel: Channel) -> int | None:
        """The same for a channel."""
        return self._channels.unchanged_since_ms(channel)

    def exchange(self, state: ExchangeState, ranges: SampleRanges = NO_RANGES) -> dict[str, Any]:
        """See the module."""
        return self._exchanges.show(state, _EXCHANGE, ranges, self.tick_ms)

    def connection(self, connection: Any, ranges: SampleRanges = NO_RANGES) -> dict[str, Any]:
        """For any protocol; see the module."""
        return self._connections.show(connection, _CONNECTION, ranges, self.tick_ms)

    def vhost(self, name: str, ranges: SampleRanges = NO_RANGES) -> dict[str, Any]:
        """See the module."""
        return self._sums([name], _VHOST, ranges)

    def overview(self, vhosts: Collection[str], ranges: SampleRanges = NO_RANGES) -> dict[str, Any]:
        """Over the virtual hosts that the caller may see; see the module."""
        # RabbitMQ's page requests no range of their own for them.
        over = ranges._replace(data_rates=next((each for each in (ranges.data_rates, *ranges) if each), None))
        churn = show(_CHURN, self._churn, _churn(self._broker.churn), over, self.tick_ms)
        return self._sums(vhosts, _OVERVIEW, ranges) | churn

    def node(self, ranges: SampleRanges = NO_RANGES) -> dict[str, Any]:
        """See the module."""
        return show(self._node_block, self._node, self._node_values(), ranges, self.tick_ms)

    def plots(self, vhosts: Collection[str], wanted: Range) -> list[Row]:
        """Over the virtual hosts that the caller sees, oldest first; see `plots.plot_rows`."""
        asked = wanted.times(self.tick_ms)
        # One moment more, so that the first row has a rate, too.
        times = [asked[0] - wanted.step_ms, *asked]
        known = [each for each in times if each >= self._begun_ms + self.interval_ms]
        rows = plot_rows(self._together(vhosts), _PLOTTED, self._own, known, self._gaps)
        return [row for row in rows if row[0] is not None and row[0] >= asked[0]]

    def consumer_utilisation(self, queue: Queue) -> float:
        """The share of recent time in which no message waited for a consumer; 0 without consumers."""
        return self._utilisation.get(queue, 1.0) if queue.consumers else 0.0

    def _sums(
        self, vhosts: Collection[str], blocks: tuple[Block, ...], ranges: SampleRanges
    ) -> dict[str, Any]:
        sums = self._together(vhosts)
        return show(blocks, sums, sums.values, ranges, self.tick_ms)

    def _together(self, vhosts: Collection[str]) -> SummedHistory:
        found = [self._vhosts[name].history for name in vhosts if name in self._vhosts]
        return SummedHistory([history for history in found if history is not None], _VHOST_WIDTH)


def _ignore(thing: object, values: object) -> None:
    """Do nothing: these counts are not summed."""


def _queue_values(queue: Queue) -> Values:
    counters, messages, unacked = queue.counters, queue.unsettled_count, queue.delivered_count
    ready = messages - unacked - queue.kept_count
    return (messages, ready, unacked, counters.publish, *_delivered(counters))


def _channel_values(channel: Channel) -> Values:
    return _published(channel.counters) + _delivered(channel.counters)


def _exchange_values(state: ExchangeState) -> Values:
    return _exchanged(state.counters)


def _octets(connection: Any) -> Values:
    if isinstance(connection, ClientConnection):
        return connection.received_bytes, connection.sent_bytes
    return connection.octets_received, connection.octets_sent
