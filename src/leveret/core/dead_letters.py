"""What becomes of a message that expired, was dropped or was rejected: its headers and its way.

RabbitMQ's rules: the first entry of the header `x-death` tells why and where a message died last, an
entry a queue and reason, with a count; `x-first-death-*` stay as they were first set. A message that
came round to a queue in which it died, without anybody having rejected it on the way, is dropped there.
"""

from __future__ import annotations

from typing import Any

from leveret.core.broker import Broker
from leveret.core.head import Head, make_head
from leveret.core.queue import DeadLetters, Queue
from leveret.core.quorum_queue import DELIVERY_COUNT
from leveret.core.validation import queue_type
from leveret.wire import properties as props
from leveret.wire import tables

_DEATHS = b"x-death"
_CARBON_COPIES = b"CC"


def died(head: Head, queue: str, reason: str, now_s: int, exchange: str, routing_key: str | None) -> Head:
    """The head under which the dead are published to `exchange`, with their own routing key if that is None."""
    properties = props.split(head.header)
    headers = tables.split(properties.get(props.HEADERS, b""))
    death = {
        b"count": tables.long_integer(1),
        b"reason": tables.long_string(reason.encode()),
        b"queue": tables.long_string(queue.encode()),
        b"time": tables.timestamp(now_s),
        b"exchange": tables.long_string(head.exchange),
        b"routing-keys": tables.array(map(tables.long_string, [head.routing_key, *carbon_copies(headers)])),
    }
    expiration = properties.pop(props.EXPIRATION, None)
    if expiration is not None:
        death[b"original-expiration"] = tables.long_string(expiration)
    _note_death(headers, death)
    headers.pop(DELIVERY_COUNT, None)
    key = head.routing_key
    if routing_key is not None:
        key = routing_key.encode()
        headers.pop(_CARBON_COPIES, None)
    properties[props.HEADERS] = tables.join(headers)
    return make_head(exchange.encode(), key, props.join(properties, head.body_bytes))


def _note_death(headers: dict[bytes, bytes], death: dict[bytes, bytes]) -> None:
    """Put a death first in `x-death`, or count up the entry of the same queue and reason."""
    others: list[bytes] = []
    for value in _deaths(headers):
        entry = tables.split(tables.table_of(value) or b"")
        if entry.get(b"queue") == death[b"queue"] and entry.get(b"reason") == death[b"reason"]:
            count = tables.integer_of(entry.get(b"count", b"")) or 0
            death = entry | {b"count": tables.long_integer(count + 1)}
        else:
            others.append(value)
    headers[_DEATHS] = tables.array([tables.table(death), *others])
    for name in (b"exchange", b"queue", b"reason"):
        headers.setdefault(b"x-first-death-" + name, death[name])


def _deaths(headers: dict[bytes, bytes]) -> list[bytes]:
    return [value for value in tables.split_array(headers.get(_DEATHS, b"")) if value[:1] == b"F"]


def carbon_copies(headers: dict[bytes, bytes]) -> list[bytes]:
    """The routing keys in the header CC."""
    texts = map(tables.text_of, tables.split_array(headers.get(_CARBON_COPIES, b"")))
    return [text for text in texts if text is not None]


def goes_round(head: Head, queue: str) -> bool:
    """Whether these dead died in `queue` before, and nobody rejected them since."""
    headers = tables.split(props.split(head.header).get(props.HEADERS, b""))
    for value in _deaths(headers):
        entry = tables.split(tables.table_of(value) or b"")
        if tables.text_of(entry.get(b"reason", b"")) == b"rejected":
            return False
        if tables.text_of(entry.get(b"queue", b"")) == queue.encode():
            return True
    return False


def bury(broker: Broker, queue: Queue, letters: DeadLetters, now_s: int) -> dict[Queue, bool]:
    """Publish the dead where the queue's settings say: which queues took them, and whether that needs the disk.

    Without a dead letter exchange, or when nothing is bound to it, they are simply gone (RabbitMQ's rule).
    """
    settings, (vhost, name) = queue.settings, queue.key
    exchange = settings.dead_letter_exchange
    if exchange is None or exchange not in broker.topology(vhost).exchanges:
        return {}
    takers: dict[Queue, bool] = {}
    kind = queue_type(queue.definition.arguments)
    for run in letters.runs:
        broker.dead_lettered[kind, letters.reason] += len(run.bodies)
        head = died(run.head, name, letters.reason, now_s, exchange, settings.dead_letter_routing_key)
        for target in _targets(broker, vhost, exchange, head):
            if letters.reason != "rejected" and goes_round(head, target.key[1]):
                continue
            if target.accepts(head.body_bytes):
                target.gather(head, run.bodies)
                broker.dirty[target] = None
                needs_disk = target.must_keep(head)
                takers[target] = needs_disk or takers.get(target, False)
    return takers


def _targets(broker: Broker, vhost: str, exchange: str, head: Head) -> dict[Queue, None]:
    """Where a message goes by its routing key and its carbon copies."""
    copies = carbon_copies(tables.split(props.split(head.header).get(props.HEADERS, b"")))
    return {
        target: None
        for key in [head.routing_key, *copies]
        for target in broker.route(vhost, exchange, key.decode(), lambda: headers_of(head.header))
    }


def headers_of(header: bytes) -> dict[str, Any]:
    """The header table of a content header, decoded."""
    return props.decode(header).headers or {}
