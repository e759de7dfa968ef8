"""A conversation from a seed: the same seed makes the same steps on every machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

from tests.conformance.conversations.chance import (
    BAD,
    EXCHANGES,
    KEYS,
    OPERATOR_KEYS,
    PATTERNS,
    POLICY_KEYS,
    QUEUES,
    REGEXES,
    Chance,
)
from tests.conformance.conversations.steps import (
    REPLY,
    VHOST,
    Call,
    Drain,
    Leave,
    Publish,
    Request,
    Settle,
    Step,
    Wait,
)

TAGS: Final = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7")
REPLIES: Final = "amq.rabbitmq.reply-to"
HOW: Final[tuple[Literal["Ack", "Nack", "Reject"], ...]] = ("Ack", "Nack", "Reject")
KINDS: Final = ("direct", "fanout", "topic", "headers")


def conversation(seed: int, length: int) -> list[Step]:
    """The steps of a seed: first a few definitions, so that the rest has something to meet, then anything.

    Once the clients have left, what remains is looked at.
    """
    left: list[Step] = [Leave(0), Leave(1), Request("GET", f"definitions/{VHOST}")]
    return [*_Generator(seed).steps(length), *left, *map(Drain, QUEUES)]


class _Generator:
    def __init__(self, seed: int) -> None:
        self._chance = Chance(seed)
        self._count = 0
        self._queues: dict[str, dict[str, Any]] = {}
        self._exchanges: dict[str, dict[str, Any]] = {}
        self._transactional: set[tuple[int, int]] = set()
        self._anything: list[tuple[int, Callable[[], Step]]] = [
            (3, self._declare_queue),
            (2, self._declare_exchange),
            (3, self._bind),
            (1, self._unbind),
            (2, self._bind_exchange),
            (1, self._unbind_exchange),
            (40, self._publish),
            (14, self._get),
            (14, self._consume),
            (4, self._cancel),
            (26, self._settle),
            (4, self._qos),
            (3, self._recover),
            (6, self._confirm),
            (4, self._transaction),
            (2, self._purge),
            (2, self._delete_queue),
            (1, self._delete_exchange),
            (2, self._close_channel),
            (1, self._leave),
            (3, self._set_policy),
            (2, self._delete_policy),
            (1, self._limit),
            (1, self._odd),
            (2, self._wait),
        ]

    def steps(self, length: int) -> list[Step]:
        """See `conversation`."""
        chance = self._chance
        begin: list[Callable[[], Step]] = [self._permit]
        begin += [partial(self._declare_queue, name) for name in QUEUES[:3]]
        begin += [partial(self._declare_exchange, name) for name in EXCHANGES[:2]]
        begin += [self._bind] * 5
        if chance.happens(0.3):
            begin.insert(0, self._set_policy)
        if chance.happens(0.3):
            begin.append(self._confirm)
        # A conversation that lacks some methods, and has others more often, goes deeper.
        weights = [weight * chance.one((0, 1, 1, 4)) for weight, _ in self._anything]
        makers = [make for _, make in self._anything]
        rest = chance.random.choices(makers, weights, k=max(0, length - len(begin)))
        made = []
        for self._count, make in enumerate((*begin, *rest)):
            made.append(make())
        return made

    # Where

    def _place(self) -> tuple[int, int]:
        """A connection and a channel: mostly the first of both."""
        chance = self._chance
        return chance.random.choices((0, 1), (85, 15))[0], chance.random.choices((1, 2), (75, 25))[0]

    def _call(self, method: str, **arguments: Any) -> Call:
        return Call(*self._place(), method, arguments)

    # Definitions

    def _declare_queue(self, name: str | None = None) -> Step:
        """A new queue, or one that was declared before: alike, passively, or with something else."""
        chance = self._chance
        known = self._queues.get(chance.queue()) if name is None else None
        if known is not None and chance.happens(0.5):
            passive = chance.happens(0.4)
            return self._call("Queue.Declare", **known | {"passive": passive})
        bad = 0.0 if name else BAD
        arguments = chance.queue_arguments(bad)
        typed = arguments.get("x-queue-type") in ("quorum", "stream")
        other = "" if chance.happens(0.05) else "amq.mine" if chance.happens(0.01) else chance.queue()
        declared = {
            "queue": name or other,
            "durable": chance.happens(1.0 - bad if typed else 0.6),
            "exclusive": chance.happens(bad if typed else 0.06),
            "auto_delete": chance.happens(bad if typed else 0.12),
            "arguments": arguments,
        }
        self._queues[name or other] = declared
        return self._call("Queue.Declare", **declared)

    def _declare_exchange(self, name: str | None = None) -> Step:
        """As `_declare_queue`."""
        chance = self._chance
        known = self._exchanges.get(chance.exchange()) if name is None else None
        if known is not None and chance.happens(0.5):
            passive = chance.happens(0.4)
            return self._call("Exchange.Declare", **known | {"passive": passive})
        arguments: dict[str, Any] = {}
        if chance.happens(0.3):
            alternates = (("x0", "x1", "amq.fanout", "missing"), (1, True))
            arguments["alternate-exchange"] = chance.value(alternates, 0.0 if name else BAD)
        declared = {
            "exchange": name or chance.exchange(),
            "exchange_type": "no-such-type" if name is None and chance.happens(BAD) else chance.one(KINDS),
            "durable": chance.happens(0.6),
            "auto_delete": chance.happens(0.12),
            "internal": chance.happens(0.04),
            "arguments": arguments,
        }
        self._exchanges[name or "x0"] = declared
        return self._call("Exchange.Declare", **declared)

    def _binding(self) -> dict[str, Any]:
        chance = self._chance
        arguments = chance.match() if chance.happens(0.4) else {}
        return {"routing_key": chance.one(PATTERNS), "arguments": arguments}

    def _bind(self) -> Step:
        chance = self._chance
        return self._call("Queue.Bind", queue=chance.queue(), exchange=chance.exchange(), **self._binding())

    def _unbind(self) -> Step:
        chance = self._chance
        return self._call("Queue.Unbind", queue=chance.queue(), exchange=chance.exchange(), **self._binding())

    def _bind_exchange(self) -> Step:
        source, target = self._chance.exchange(), self._chance.exchange()
        return self._call("Exchange.Bind", destination=target, source=source, **self._binding())

    def _unbind_exchange(self) -> Step:
        source, target = self._chance.exchange(), self._chance.exchange()
        return self._call("Exchange.Unbind", destination=target, source=source, **self._binding())

    def _purge(self) -> Step:
        return self._call("Queue.Purge", queue=self._chance.queue())

    def _delete_queue(self) -> Step:
        chance = self._chance
        conditions = {"if_unused": chance.happens(0.25), "if_empty": chance.happens(0.25)}
        return self._call("Queue.Delete", queue=chance.queue(), **conditions)

    def _delete_exchange(self) -> Step:
        return self._call(
            "Exchange.Delete", exchange=self._chance.exchange(), if_unused=self._chance.happens(0.4)
        )

    # Messages

    def _publish(self) -> Step:
        chance = self._chance
        exchange = "" if chance.happens(0.45) else chance.exchange()
        key = chance.queue() if not exchange and chance.happens(0.95) else chance.one(KEYS)
        if chance.happens(0.03):
            exchange, key = "", REPLY
        return Publish(
            *self._place(),
            exchange,
            key,
            f"m{self._count}" + "." * chance.below(8) if chance.happens(0.95) else "",
            chance.happens(0.4),
            chance.happens(0.002),
            chance.properties(),
        )

    def _get(self) -> Step:
        return self._call("Basic.Get", queue=self._chance.queue(), no_ack=self._chance.happens(0.3))

    def _consume(self) -> Step:
        chance = self._chance
        is_reply = chance.happens(0.06)
        arguments: dict[str, Any] = {}
        if chance.happens(0.15):
            arguments["x-priority"] = chance.value(((1, 2, -1), ("1", 1.5, True)))
        if chance.happens(0.15):
            offsets = (("first", "last", "next", 0, 2, 100), ("nowhere", True))
            arguments["x-stream-offset"] = chance.value(offsets)
        return self._call(
            "Basic.Consume",
            queue=REPLIES if is_reply else chance.queue(),
            consumer_tag=chance.one(TAGS) if chance.happens(0.9) else "",
            no_ack=chance.happens(0.97 if is_reply else 0.3),
            exclusive=chance.happens(0.08),
            arguments=arguments,
        )

    def _cancel(self) -> Step:
        return self._call("Basic.Cancel", consumer_tag=self._chance.one(TAGS))

    def _settle(self) -> Step:
        chance = self._chance
        nth = chance.random.choices((0, 1, 2, 9, -1, -2), (50, 20, 10, 10, 4, 0.5))[0]
        how: Literal["Ack", "Nack", "Reject"] = chance.random.choices(HOW, (5, 4, 3))[0]
        multiple = how != "Reject" and chance.happens(0.3)
        return Settle(*self._place(), how, nth, multiple, how != "Ack" and chance.happens(0.6))

    def _qos(self) -> Step:
        chance = self._chance
        size = 1 if chance.happens(BAD) else 0
        count = chance.one((0, 1, 1, 2, 3, 10))
        return self._call("Basic.Qos", prefetch_size=size, prefetch_count=count, global_=chance.happens(0.3))

    def _recover(self) -> Step:
        return self._call("Basic.Recover", requeue=self._chance.happens(0.95))

    def _confirm(self) -> Step:
        return self._call("Confirm.Select")

    def _transaction(self) -> Step:
        """Begin a transaction on a channel, or end one."""
        chance = self._chance
        place = self._place()
        is_odd = chance.happens(0.05)
        if (place in self._transactional) == is_odd:
            self._transactional.add(place)
            return Call(*place, "Tx.Select")
        return Call(*place, chance.random.choices(("Tx.Commit", "Tx.Rollback"), (3, 2))[0])

    # Ends

    def _close_channel(self) -> Step:
        return self._call("Channel.Close", reply_code=200, reply_text="", class_id=0, method_id=0)

    def _leave(self) -> Step:
        return Leave(self._place()[0], self._chance.happens(0.4))

    def _wait(self) -> Step:
        return Wait(400)

    # The management API

    def _permit(self) -> Step:
        """What the second connection's user may do; the conversation begins with it."""
        pattern = (*[".*"] * 8, "^q", "^x", "^(q|amq)", "")
        body = {key: self._chance.one(pattern) for key in ("configure", "write", "read")}
        return Request("PUT", f"permissions/{VHOST}/limited", body)

    def _set_policy(self) -> Step:
        chance = self._chance
        kind = "operator-policies" if chance.happens(0.3) else "policies"
        is_operators = kind == "operator-policies"
        keys = OPERATOR_KEYS if is_operators and chance.happens(0.9) else tuple(POLICY_KEYS)
        if is_operators:
            # An operator's `overflow` is accepted: docs/deviations.md.
            keys = tuple(key for key in keys if key != "overflow")
        body = {
            "pattern": chance.one(REGEXES),
            "definition": chance.some(POLICY_KEYS, keys, 3) or {"max-length": 2},
            "priority": chance.value(((0, 1, 2), ("1", 1.5, None))),
            "apply-to": chance.value((("all", "queues", "exchanges"), ("nothing", 1))),
        }
        for key in ("priority", "apply-to"):
            if chance.happens(0.15):
                del body[key]
        return Request("PUT", f"{kind}/{VHOST}/p{chance.below(3)}", body)

    def _delete_policy(self) -> Step:
        kind = self._chance.one(("policies", "policies", "operator-policies"))
        return Request("DELETE", f"{kind}/{VHOST}/p{self._chance.below(3)}")

    def _limit(self) -> Step:
        chance = self._chance
        if chance.happens(0.4):
            body = {
                "exchange": chance.exchange(),
                "write": chance.one((".*", "^k")),
                "read": chance.one((".*", "^k")),
            }
            return Request("PUT", f"topic-permissions/{VHOST}/limited", body)
        limit = chance.one(("max-queues", "max-connections"))
        if chance.happens(0.4):
            return Request("DELETE", f"vhost-limits/{VHOST}/{limit}")
        return Request("PUT", f"vhost-limits/{VHOST}/{limit}", {"value": chance.one((-1, 2, 5, 9))})

    def _odd(self) -> Step:
        """What clients do seldom."""
        odd: tuple[tuple[str, dict[str, Any]], ...] = (
            ("Channel.Flow", {"active": self._chance.happens(0.8)}),
            ("Channel.Open", {}),
            ("Basic.RecoverAsync", {"requeue": True}),
            ("Exchange.Declare", {"exchange": "", "exchange_type": "direct", "passive": True}),
            ("Queue.Declare", {"queue": "", "passive": True}),
            ("Basic.Cancel", {"consumer_tag": "unknown"}),
        )
        method, arguments = self._chance.one(odd)
        return self._call(method, **arguments)
