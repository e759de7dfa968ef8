"""Random values of a conversation: few names, so that steps meet; good values mostly, and bad ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

QUEUES: Final = ("q0", "q1", "q2", "q3")
EXCHANGES: Final = ("x0", "x1", "x2", "x3")
STANDARD: Final = ("amq.direct", "amq.fanout", "amq.topic", "amq.headers")
KEYS: Final = ("", "k", "k.a", "k.b", "k.a.b", *QUEUES)
PATTERNS: Final = (*KEYS, "#", "*", "k.*", "k.#", "#.a", "*.a.#", "k.*.b")
MISSING: Final = "missing"
USERS: Final = ("guest", "limited")

BAD: Final = 0.02
"""How often a value is a bad one."""

Values = tuple[Sequence[Any], Sequence[Any]]
"""Good ones and bad ones."""

QUEUE_ARGUMENTS: Final[Mapping[str, Values]] = {
    "x-message-ttl": ((0, 1, 60_000), (-1, "5", 2**33, True, 1.5, None)),
    "x-expires": ((250, 60_000), (0, -1, "60", 2**33)),
    "x-max-length": ((0, 1, 2, 3), (-1, "1", 1.0)),
    "x-max-length-bytes": ((0, 4, 9, 100), (-1, "9")),
    "x-overflow": (("drop-head", "reject-publish", "reject-publish-dlx"), ("drop", 1)),
    "x-dead-letter-exchange": (("", "x0", "x1", "amq.fanout", MISSING), (1, True)),
    "x-dead-letter-routing-key": (("q0", "q1", "q2", "k.a"), (1,)),
    "x-max-priority": ((1, 3, 10), (0, -1, 256, "3")),
    "x-single-active-consumer": ((True, False), ("true", 1)),
    "x-queue-mode": (("default", "lazy"), ("eager", 1)),
    "x-queue-version": ((1, 2), (3, "1")),
    "x-delivery-limit": ((0, 1, 2), ()),
    "x-max-in-memory-length": ((0, 2), (-1, "2")),
    "x-max-in-memory-bytes": ((0, 10), (-1,)),
    "x-dead-letter-strategy": (("at-most-once",), ("never",)),
    "x-max-age": (("1h", "7D"), (1, "h")),
    "x-stream-max-segment-size-bytes": ((1_000_000,), (-1, "1", 2**40)),
    "x-initial-cluster-size": ((1,), (-1, "1")),
    "x-quorum-initial-group-size": ((1,), (0, "1")),
    "x-queue-leader-locator": (("client-local", "balanced"), ("near", 1)),
    "x-unknown": (("anything", 7), ()),
}
CLASSIC: Final = (*tuple(QUEUE_ARGUMENTS)[:11], "x-unknown")
QUORUM: Final = (
    "x-message-ttl",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-single-active-consumer",
    "x-max-in-memory-length",
    "x-dead-letter-strategy",
    "x-quorum-initial-group-size",
)
STREAM: Final = (
    "x-max-length-bytes",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-initial-cluster-size",
)
POLICY_KEYS: Final[Mapping[str, Values]] = {
    # One that changes counts for other messages than in RabbitMQ: docs/deviations.md.
    "message-ttl": ((60_000,), (-1, "5", None)),
    "expires": ((60_000,), (0, "1")),
    "max-length": ((0, 1, 2), (-1, "1", 1.5)),
    "max-length-bytes": ((0, 4, 9), (-1, "1")),
    "overflow": (("drop-head", "reject-publish", "reject-publish-dlx"), ("drop", 1)),
    "dead-letter-exchange": (("", "x0", "x1", MISSING), (1,)),
    "dead-letter-routing-key": (("q0", "q1", "q2", "k.a"), (1,)),
    "alternate-exchange": (("x0", "x1", "amq.fanout", MISSING), (1,)),
    "delivery-limit": ((0, 1, 2), (-1, "1")),
    "queue-mode": (("lazy", "default"), ("eager",)),
    "max-age": (("1h",), ("h", 1)),
    "unknown-key": ((), (1,)),
}
OPERATOR_KEYS: Final = ("message-ttl", "max-length", "max-length-bytes", "expires", "delivery-limit")
REGEXES: Final = (".*", "", "^$", "^q", "^q[01]$", "^x", "^(q|x)", "0", "amq", "[")
COPIES: Final[Sequence[list[str]]] = (["q0"], ["q1", "k.a"], ["q2", "q0", "q1"], ["k.a", "k.a"], [])
HEADER_VALUES: Final = (1, 2, "a", "b", True, None, 1.5, [1, "a"], {"n": 1})


class Chance:
    """Draws from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def happens(self, probability: float) -> bool:
        """Whether something of this probability happens."""
        return self.random.random() < probability

    def one(self, values: Sequence[Any]) -> Any:
        """One of these."""
        return self.random.choice(values)

    def below(self, end: int) -> int:
        """A number from 0 on, small ones more often."""
        return min(self.random.randrange(end), self.random.randrange(end))

    def value(self, values: Values, bad: float = BAD) -> Any:
        """A good value, seldom a bad one."""
        good, wrong = values
        return self.one(wrong if wrong and (not good or self.happens(bad)) else good)

    def some(
        self, table: Mapping[str, Values], keys: Sequence[str], most: int, bad: float = BAD
    ) -> dict[str, Any]:
        """Up to `most` arguments of a table."""
        chosen = self.random.sample(list(keys), min(len(keys), self.below(most + 1)))
        return {key: self.value(table[key], bad) for key in chosen}

    def queue(self) -> str:
        """A queue of the conversation, seldom one that is never there."""
        return MISSING if self.happens(0.01) else str(self.random.choices(QUEUES, (8, 6, 4, 1))[0])

    def exchange(self) -> str:
        """An exchange: one of the conversation, a standard one, or seldom the default one or none."""
        kind = self.random.choices((EXCHANGES, STANDARD, ("", MISSING)), (60, 37, 3))[0]
        return str(self.random.choices(EXCHANGES, (8, 6, 1, 1))[0] if kind is EXCHANGES else self.one(kind))

    def queue_arguments(self, bad: float = BAD) -> dict[str, Any]:
        """Arguments of a queue, of any type."""
        kind = self.random.choices((None, "classic", "quorum", "stream"), (72, 4, 16, 8))[0]
        if kind == "stream":
            arguments = self.some(QUEUE_ARGUMENTS, STREAM, 2, bad)
        elif kind == "quorum":
            # Without a limit what returns goes to another place: docs/deviations.md.
            limit = {"x-delivery-limit": self.one((0, 1, 2, 9))}
            arguments = self.some(QUEUE_ARGUMENTS, QUORUM, 4, bad) | limit
        else:
            arguments = self.some(QUEUE_ARGUMENTS, CLASSIC, 5, bad)
            if (
                arguments.get("x-overflow") == "reject-publish-dlx"
                or "x-dead-letter-routing-key" in arguments
            ):
                arguments.setdefault("x-dead-letter-exchange", self.one(("", "x0", "x1")))
        if self.happens(2 * bad):
            arguments |= self.some(QUEUE_ARGUMENTS, tuple(QUEUE_ARGUMENTS), 2, bad)
        if self.happens(bad):
            kind = self.one(("other", 1))
        return arguments if kind is None else arguments | {"x-queue-type": kind}

    def match(self) -> dict[str, Any]:
        """Arguments of a binding to a headers exchange."""
        how = self.value((("all", "any", "all-with-x", "any-with-x"), ("some", 1)))
        match = {} if self.happens(0.2) else {"x-match": how}
        return match | self.headers()

    def headers(self) -> dict[str, Any]:
        """Up to three headers."""
        names = self.random.sample(("h1", "h2", "x-h"), self.below(4))
        return {name: self.one(HEADER_VALUES) for name in names}

    def properties(self) -> dict[str, Any]:
        """Properties of a message, most of them absent."""
        likely: dict[str, tuple[float, Sequence[Any]]] = {
            "delivery_mode": (0.5, (1, 2)),
            "priority": (0.3, (0, 1, 2, 3, 9, 200)),
            "expiration": (0.1, ("0", "1", "60000", "600000")),
            "user_id": (0.03, (*USERS, "nobody", "")),
            "reply_to": (0.04, ("amq.rabbitmq.reply-to", "q0")),
            "content_type": (0.1, ("text/plain", "")),
            "correlation_id": (0.1, ("c1",)),
            "message_id": (0.05, ("m",)),
            "message_type": (0.05, ("t",)),
            "app_id": (0.05, ("a",)),
        }
        drawn = {name: self.one(values) for name, (often, values) in likely.items() if self.happens(often)}
        if self.happens(BAD):
            drawn["expiration"] = self.one(("x", "-1", "1.5", "4294967296", ""))
        headers = self.headers() if self.happens(0.35) else {}
        for name, often in (("CC", 0.08), ("BCC", 0.02)):
            if self.happens(often):
                headers[name] = self.value((COPIES, ("q0", [1], None, 1)), 0.1)
        if self.happens(0.03):
            headers |= self.one(({"x-death": []}, {"x-death": "x"}, {"x-stream-offset": 3}))
        return drawn | ({"headers": headers} if headers else {})
