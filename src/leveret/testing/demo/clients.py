"""The applications of the demos, each a process of its own.

`publish` confirms each flight and records the time of its confirm. `consume` acks most of each batch, out of order,
requeues some messages and holds the rest. Both know several listeners: when theirs is gone they connect to the first
one that answers, and end when none does. A publisher then does not publish unconfirmed flights again, as that could
duplicate them.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from leveret.testing.applications.applications import WINDOW, AppConsumer, AppPublisher, TxConsumer
from leveret.testing.applications.books import Books
from leveret.testing.demo.flights import QUEUES, flights
from leveret.testing.network.ports import accepts

_REST_S: Final = 0.1


def main() -> None:
    """Run until all flights are published, or the consumer is told to end (SIGTERM), or no broker answers."""
    parser = argparse.ArgumentParser(prog="leveret-demo-client")
    parser.add_argument("role", choices=["publish", "consume"])
    parser.add_argument("--ports", type=int, nargs="+", required=True)
    parser.add_argument("--vhost", required=True)
    parser.add_argument("--rate", type=int, required=True, help="messages a second")
    parser.add_argument("--books", type=Path, required=True, help="folder")
    parser.add_argument("--count", type=int, default=0, help="publish so many flights")
    parser.add_argument("--queue", help="of them those of this queue alone")
    parser.add_argument("--window", type=int, default=WINDOW, help="most flights that wait for their confirm")
    parser.add_argument("--seed", type=int, default=0, help="of a consumer's choices")
    parser.add_argument("--tx", action="store_true", help="consume in transactions")
    options = parser.parse_args()
    if options.role == "publish":
        _publish(options)
    else:
        _consume(options)


def _reachable_port(ports: Sequence[int]) -> int | None:
    return next((port for port in ports if accepts(port)), None)


def _publish(options: argparse.Namespace) -> None:
    books, queue = Books(options.books), options.queue
    messages = (each for each in flights(options.count) if queue is None or each.queue == queue)
    while (port := _reachable_port(options.ports)) is not None:
        publisher = AppPublisher(
            port, options.vhost, messages, books, window=options.window, rate=options.rate
        )
        publisher.run()
        if publisher.refused:
            sys.exit(f"the broker refused {publisher.refused} flights")
        if publisher.is_done:
            return
        time.sleep(_REST_S)


def _consume(options: argparse.Namespace) -> None:
    books, kind = Books(options.books), TxConsumer if options.tx else AppConsumer
    consumer: AppConsumer | None = None
    is_ending = False

    def end(*_: object) -> None:
        nonlocal is_ending
        is_ending = True
        if consumer is not None:
            consumer.stop()

    signal.signal(signal.SIGTERM, end)
    while not is_ending and (port := _reachable_port(options.ports)) is not None:
        consumer = kind(port, options.vhost, QUEUES, books, options.seed, rate=options.rate)
        if not is_ending:
            consumer.run()
            time.sleep(_REST_S)
        if consumer.disordered:
            sys.exit(f"{consumer.disordered} flights came out of order")


if __name__ == "__main__":
    main()
