"""Dead letters of two sites: queues whose messages die in three ways, and the grave that another node may lead.

The books know ADR 48's rule. A message whose dead letter is at the standby, and known to be, is in the grave alone. One
that dies as the upstream is lost is in its own queue, in the grave, or in both: never in neither. The promoted site
dead-letters what came back to its own queue, so the grave may have a message twice.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pika
import pika.exceptions

from leveret.pipeline.archive.manifest import Manifest
from leveret.testing.applications.applications import (
    ReceivedMessage,
    parameters,
    publish_message,
    received_message,
)
from leveret.testing.applications.contents import has_died
from leveret.testing.applications.mixed_messages import MixedMessage
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites.standby_cluster import StandbyCluster

GRAVE: Final = "grave"
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
SHORT: Final = "short"
SHORT_MAX: Final = 8
DYING: Final[dict[str, dict[str, Any]]] = {REJECTED: {}, EXPIRED: {}, SHORT: {"x-max-length": SHORT_MAX}}
_TO_GRAVE: Final = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": GRAVE}
_REASONS: Final = {REJECTED: "rejected", EXPIRED: "expired", SHORT: "maxlen"}
_SOON_MS: Final = 200
_LATE_MS: Final = 12_000
"""The longest time to live of a message that may die as the upstream is lost."""
_PER_QUEUE: Final = 12
_ACKED: Final = 0.3
_BROKEN: Final = (pika.exceptions.AMQPError, OSError)


class Graves:
    """See the module.

    Attributes:
        dead: by vhost, the numbers of messages whose dead letters are known to be at the standby.
        buried: by vhost, those of them that a consumer of the grave has settled.
        dying: by vhost, the numbers of messages that the standby has, and that may die at any time.
        late: the numbers of messages that were published as the upstream was lost.
    """

    def __init__(
        self,
        sites: StandbyCluster,
        vhosts: Sequence[str],
        chance: random.Random,
        archive_of: Callable[[str], Path],
    ) -> None:
        """Begin without messages; `archive_of` returns the archive in which the downstream has a vhost."""
        self._sites = sites
        self._archive_of = archive_of
        self._vhosts = vhosts
        self._chance = chance
        self._stopping = threading.Event()
        self._busy: list[threading.Thread] = []
        self.forget()

    def forget(self) -> None:
        """Begin the books of another upstream."""
        self.dead: dict[str, set[int]] = {vhost: set() for vhost in self._vhosts}
        self.buried: dict[str, set[int]] = {vhost: set() for vhost in self._vhosts}
        self.dying: dict[str, set[int]] = {vhost: set() for vhost in self._vhosts}
        self.late: set[int] = set()

    # -- at the upstream ----------------------------------------------------------------------

    def let_die(self) -> None:
        """Publish messages that die at once; some nodes may be lost before their dead letters are transferred."""
        for vhost in self._vhosts:
            numbers = self._publish(vhost, _SOON_MS)
            self._sites.wait(lambda vhost=vhost: self._is_over(vhost), f"all dead letters of {vhost}")
            left = {each.number for each in self._look(self._upstream(), vhost, SHORT)}
            self.dead[vhost] |= numbers - left
            self.dying[vhost] |= left

    def settle_some(self) -> None:
        """Settle some dead letters whose originals the standby knows to be settled."""
        self._sites.wait_transferred()
        for vhost in self._vhosts:
            self._sites.wait(
                lambda vhost=vhost: not self._waiting(vhost), f"the order of the logs of {vhost}"
            )
            with self._connection(self._upstream(), vhost) as connection:
                channel = connection.channel()
                channel.tx_select()
                while (got := channel.basic_get(GRAVE))[0] is not None:
                    number = received_message(*got).number
                    if number in self.dead[vhost] and self._chance.random() < _ACKED:
                        channel.basic_ack(got[0].delivery_tag)
                        self.buried[vhost].add(number)
                channel.tx_commit()

    def prepare_to_die(self) -> None:
        """Publish messages that die within the next seconds, by themselves or by `die`."""
        for vhost in self._vhosts:
            self.dying[vhost] |= self._publish(vhost, _LATE_MS, is_rejecting=False)

    def die(self) -> None:
        """Let messages die, until `end`, while the upstream is being lost."""
        self._stopping.clear()
        self._busy = [
            threading.Thread(target=self._kill_messages, args=(vhost, self._upstream()), daemon=True)
            for vhost in self._vhosts
        ]
        for each in self._busy:
            each.start()

    def end(self) -> None:
        """Let no more messages die."""
        self._stopping.set()
        for each in self._busy:
            each.join()

    def _kill_messages(self, vhost: str, node: LeveretProcess) -> None:
        """Reject messages, and push others out of a queue with a limit."""
        try:
            with self._connection(node, vhost) as connection:
                channel = connection.channel()
                while not self._stopping.is_set():
                    method, _, _ = channel.basic_get(REJECTED)
                    if method is not None:
                        channel.basic_reject(method.delivery_tag, requeue=False)
                    message = self._next(SHORT)
                    self.late.add(message.number)
                    publish_message(channel, message)
                    connection.sleep(0.05)
        except _BROKEN:
            return

    def _publish(self, vhost: str, expiration_ms: int, *, is_rejecting: bool = True) -> set[int]:
        """Publish to all queues, each at another node; return the numbers."""
        numbers: set[int] = set()
        for index, queue in enumerate((GRAVE, *DYING)):
            nodes = self._sites.upstreams
            with self._connection(nodes[index % len(nodes)], vhost) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                arguments = {} if queue == GRAVE else {**DYING[queue], **_TO_GRAVE}
                channel.queue_declare(queue, durable=True, arguments=arguments)
                for turn in range(0 if queue == GRAVE else _PER_QUEUE):
                    message = self._next(queue)
                    if queue == EXPIRED:
                        message.properties.expiration = str(expiration_ms * (turn + 1) // _PER_QUEUE)
                    publish_message(channel, message)
                    self._sites.books.unsure.discard(message.number)
                    numbers.add(message.number)
                while queue == REJECTED and is_rejecting:
                    method, _, _ = channel.basic_get(queue)
                    if method is None:
                        break
                    channel.basic_reject(method.delivery_tag, requeue=False)
        return numbers

    def _next(self, queue: str) -> MixedMessage:
        return self._sites.books.next(queue, transient=0.0)

    def _is_over(self, vhost: str) -> bool:
        """Whether all is dead that dies by itself."""
        return self._counts(self._upstream(), vhost, (REJECTED, EXPIRED)) == {0}

    def _waiting(self, vhost: str) -> bool:
        """Whether the archive has dead letters whose originals may come back."""
        return any(file.vhost == vhost for file in Manifest(self._archive_of(vhost)).waiting.values())

    # -- at the promoted site -----------------------------------------------------------------

    def check(self) -> None:
        """Check all queues of the promoted site, and empty them."""
        node = self._sites.downstreams[0]
        for vhost in self._vhosts:
            self._sites.wait(
                lambda vhost=vhost: self._counts(node, vhost, (EXPIRED,)) == {0},
                f"{EXPIRED} of {vhost} to be over",
            )
            own = {queue: self._sites.drained(node, vhost, queue) for queue in DYING}
            self._judge(vhost, own, self._sites.drained(node, vhost, GRAVE))

    def _judge(self, vhost: str, own: dict[str, list[ReceivedMessage]], grave: list[ReceivedMessage]) -> None:
        books, where = self._sites.books, f"dead letters of {vhost}"
        altered = [
            text
            for each in (*grave, *(one for found in own.values() for one in found))
            if (text := books.changed(each))
        ]
        assert not altered, f"{where}: {len(altered)} are altered, the first: {altered[0]}"
        strange = [each for each in grave if not _is_of_its_queue(each, books.published[each.number])]
        assert not strange, f"{where}: {strange[0].properties} in the grave"
        alive = Counter(each.number for found in own.values() for each in found)
        dead = Counter(each.number for each in grave)
        for queue, found in own.items():
            numbers = [each.number for each in found]
            assert numbers == sorted(set(numbers)), f"{where}: {queue} is not in order, or doubled: {numbers}"
        known, buried, dying = self.dead[vhost], self.buried[vhost], self.dying[vhost]
        back = sorted(number for number in buried if alive[number] or dead[number])
        assert not back, f"{where}: {back} were settled in the grave, and are back"
        wrong = {
            each: (alive[each], dead[each]) for each in known - buried if (alive[each], dead[each]) != (0, 1)
        }
        assert not wrong, f"{where}: not in the grave alone, once (alive, dead): {wrong}"
        lost = sorted(each for each in dying if not alive[each] and not dead[each])
        assert not lost, f"{where}: {lost} are in neither queue"
        often = {each: dead[each] for each in dead if dead[each] > 2}
        assert not often, f"{where}: too often in the grave: {often}"
        both = sum(alive[each] + dead[each] > 1 for each in dying)
        unknown = (alive | dead).keys() - known - dying - self.late
        assert not unknown, f"{where}: {sorted(unknown)} are of before"
        print(
            f"{where}: {len(known)} in the grave, {len(buried)} of them settled; {len(dying)} dying, "
            f"{sum(map(bool, map(dead.get, dying)))} of them dead, {both} in both",
            flush=True,
        )

    # -- looks --------------------------------------------------------------------------------

    def _upstream(self) -> LeveretProcess:
        return self._sites.upstream

    def _connection(self, node: LeveretProcess, vhost: str) -> pika.BlockingConnection:
        return pika.BlockingConnection(parameters(node.amqp_port, vhost))

    def _look(self, node: LeveretProcess, vhost: str, queue: str) -> list[ReceivedMessage]:
        """All messages of a queue, which stay there."""
        with self._connection(node, vhost) as connection:
            channel = connection.channel()
            found = []
            while (got := channel.basic_get(queue))[0] is not None:
                found.append(received_message(*got))
            return found

    def _counts(self, node: LeveretProcess, vhost: str, queues: Sequence[str]) -> set[int]:
        with self._connection(node, vhost) as connection:
            channel = connection.channel()
            return {channel.queue_declare(queue, passive=True).method.message_count for queue in queues}


def _is_of_its_queue(taken: ReceivedMessage, published: MixedMessage) -> bool:
    """Whether a dead letter says from which queue it came, and why it died."""
    if not has_died(vars(taken.properties)):
        return False
    [death] = taken.properties.headers["x-death"]
    return bool(death["queue"] == published.queue and death["reason"] == _REASONS[published.queue])
