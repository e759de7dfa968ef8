"""A publisher and a consumer at nodes of a cluster that work while other nodes end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from pika.exceptions import AMQPError

from leveret.testing.applications.applications import CANCEL_ON_FAIL_OVER, AppPublisher, DirectMessage
from leveret.testing.applications.books import Books, count_entries
from leveret.testing.applications.contents import is_same, properties_of
from leveret.testing.network.ports import wait_until
from leveret.testing.sites.mirror_cluster import PATIENCE_S, ClusterNode, MirrorCluster

_PREFETCH: Final = 200
_POLL_S: Final = 0.1
_WINDOW: Final = 500


class Producer:
    """Publishes messages 0 to `count - 1` with confirms, in a thread of its own."""

    def __init__(self, node: ClusterNode, queue: str, count: int, folder: Path) -> None:
        """Connect and begin."""
        self._books = Books(folder)
        self._publisher = AppPublisher(
            node.amqp_port, "/", self._messages(queue, count), self._books, window=_WINDOW
        )
        self._thread = threading.Thread(target=self._publisher.run, daemon=True)
        self._thread.start()

    @staticmethod
    def _messages(queue: str, count: int) -> Iterator[DirectMessage]:
        for number in range(count):
            yield DirectMessage(number, queue, b"%d" % number)

    @property
    def confirmed(self) -> int:
        """The number of messages confirmed by now."""
        return count_entries(self._books.confirmed)

    @property
    def refused(self) -> int:
        """The number of messages refused (basic.nack) by now."""
        return self._publisher.refused

    def wait_answered(self, count: int) -> None:
        """Wait until `count` messages are confirmed or refused."""
        wait_until(lambda: self.confirmed + self.refused >= count, f"{count} answers", PATIENCE_S)

    def end(self) -> None:
        """Wait until all messages are confirmed or refused."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.confirmed} confirmed, {self.refused} refused, then none"


class ThreadedConsumer:
    """Consumes messages 0 to `count - 1` in a thread of its own, and acks each.

    Attributes:
        seen: the number of received messages, each counted once.
        cancels: the number of cancels because of a fail-over; it consumed again at once.
        wrong: the unexpected messages: out of order, or old and not marked as redelivered.
    """

    def __init__(
        self,
        cluster: MirrorCluster,
        node: ClusterNode,
        queue: str,
        count: int,
        *,
        cancel_on_fail_over: bool = False,
        knows_cancels: bool = True,
    ) -> None:
        """Connect and begin. A client without support of cancels declares that when it connects."""
        self.seen = 0
        self.cancels = 0
        self.wrong: list[str] = []
        self._queue = queue
        self._count = count
        self._arguments = {CANCEL_ON_FAIL_OVER: cancel_on_fail_over}
        options: dict[str, Any] = {} if knows_cancels else {"client_properties": {"capabilities": {}}}
        self._connection = cluster.connect(node, **options)
        self._channel: Any = self._connection.channel()
        self._channel.basic_qos(prefetch_count=_PREFETCH)
        self._channel.add_on_cancel_callback(lambda _: self._cancelled())
        self._consume()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.join(PATIENCE_S)

    def wait_seen(self, count: int) -> None:
        """Wait until `count` messages came."""
        what = f"{count} messages at a consumer"
        wait_until(lambda: self.seen >= count or bool(self.wrong), what, PATIENCE_S)
        assert not self.wrong, self.wrong

    def _consume(self) -> None:
        self._channel.basic_consume(self._queue, self._on_message, arguments=self._arguments)

    def _run(self) -> None:
        try:
            with suppress(AMQPError):
                while not self._ending.is_set():
                    self._connection.process_data_events(_POLL_S)
        except Exception as error:
            self.wrong.append(repr(error))
            raise
        finally:
            with suppress(AMQPError):
                self._connection.close()

    def _cancelled(self) -> None:
        self.cancels += 1
        # Not inside the callback, because consuming waits for its answer.
        self._connection.call_later(0, self._consume)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        number = int(body)
        channel.basic_ack(method.delivery_tag)
        if not is_same(properties_of(number), vars(properties)):
            self.wrong.append(f"message {number} came with {properties}")
        if number == self.seen:
            self.seen += 1
        elif number > self.seen:
            self.wrong.append(f"message {number} came when {self.seen} was next")
        elif not method.redelivered:
            self.wrong.append(f"message {number} came again and is not marked as redelivered")
