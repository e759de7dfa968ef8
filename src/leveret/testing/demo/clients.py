"""The applications of the demo, each in a process of its own.

`publish` confirms each flight and notes when the confirm came. `consume` works at the upstream: of each
batch it acks most, out of order, returns some to the queue and sits on the rest.
"""

from __future__ import annotations

import sys
from pathlib import Path

from leveret.testing.applications import Consumer, Publisher
from leveret.testing.books import Books
from leveret.testing.demo.flights import QUEUES, flights


def main() -> None:
    """`publish PORT VHOST RATE BOOKS COUNT` or `consume PORT VHOST RATE BOOKS SEED`; ends with the broker."""
    role, port, vhost, rate, folder, last = sys.argv[1:]
    books = Books(Path(folder))
    if role == "consume":
        Consumer(int(port), vhost, QUEUES, books, int(last), rate=int(rate)).run()
        return
    publisher = Publisher(int(port), vhost, flights(int(last)), books, rate=int(rate))
    publisher.run()
    if publisher.refused:
        sys.exit(f"the broker refused {publisher.refused} flights")


if __name__ == "__main__":
    main()
