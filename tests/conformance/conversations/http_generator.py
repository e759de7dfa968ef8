"""Requests of the management API from a seed, with good and bad paths and bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tests.conformance.conversations.chance import (
    EXCHANGES,
    KEYS,
    MISSING,
    OPERATOR_KEYS,
    PATTERNS,
    POLICY_KEYS,
    QUEUES,
    REGEXES,
    STANDARD,
    USERS,
    Chance,
)
from tests.conformance.conversations.steps import VHOST, Request, Step

ODD: Final[Sequence[Any]] = (None, 1, -1, 1.5, True, "", "text", [], ["a"], {}, {"a": 1}, "true")
"""Values of a field that nobody knows."""
FIELD_MISSING: Final = 0.04
"""How often a field of a body is left out. What is of a wrong type is answered differently: docs/deviations.md."""
PAGES: Final = (
    "page=1",
    "page=2&page_size=1",
    "page=0",
    "page=x",
    "page=1&page_size=501",
    "page=1&page_size=0",
    "page=1&name=q&use_regex=true",
    "page=1&name=[&use_regex=true",
    "name=q0",
    "sort=name",
)


def requests(seed: int, length: int) -> list[Step]:
    """The requests of a seed; the first ones make something to ask about."""
    return _Generator(seed).steps(length)


class _Generator:
    def __init__(self, seed: int) -> None:
        self._chance = Chance(seed)
        self._makers = (
            (3, self._queue),
            (3, self._exchange),
            (4, self._binding),
            (3, self._policy),
            (2, self._permission),
            (2, self._limit),
            (1, self._parameter),
            (4, self._publish),
            (4, self._get),
            (1, self._purge),
            (6, self._list),
            (1, self._import),
            (1, self._odd_path),
        )

    def steps(self, length: int) -> list[Step]:
        """See `requests`."""
        weights, makers = zip(*self._makers, strict=True)
        begin = [Request("PUT", f"queues/{VHOST}/{name}", {}) for name in QUEUES[:2]]
        begin += [Request("PUT", f"exchanges/{VHOST}/x0", {"type": "topic"})]
        rest = self._chance.random.choices(makers, weights, k=max(0, length - len(begin)))
        return [*begin, *(make() for make in rest), Request("GET", f"definitions/{VHOST}")]

    def _body(self, fields: dict[str, Any]) -> Any:
        """A body of these fields, seldom with a fault."""
        chance = self._chance
        body = dict(fields)
        for name in fields:
            if chance.happens(FIELD_MISSING):
                del body[name]
        if chance.happens(0.05):
            body["extra"] = chance.one(ODD)
        return body

    def _request(self, path: str, fields: dict[str, Any], put: float = 0.6) -> Step:
        """A change, a deletion or a look at what has a name."""
        chance = self._chance
        user = USERS[1] if chance.happens(0.15) else USERS[0]
        if chance.happens(put):
            return Request("PUT", path, self._body(fields), user)
        return Request(chance.one(("GET", "GET", "DELETE")), path, None, user)

    def _vhost(self) -> str:
        return MISSING if self._chance.happens(0.04) else VHOST

    def _queue(self) -> Step:
        chance = self._chance
        fields = {
            "durable": chance.happens(0.8),
            "auto_delete": chance.happens(0.1),
            "arguments": chance.queue_arguments(),
        }
        name = "amq.mine" if chance.happens(0.03) else chance.queue()
        path = f"queues/{self._vhost()}/{name}"
        if chance.happens(0.05):
            condition = chance.one(("if-empty=true", "if-unused=true", "if-empty=x"))
            return Request("DELETE", f"{path}?{condition}")
        return self._request(path, fields)

    def _exchange(self) -> Step:
        chance = self._chance
        fields: dict[str, Any] = {
            "type": chance.value((("direct", "fanout", "topic", "headers"), ("no-such-type", ""))),
            "durable": chance.happens(0.8),
            "auto_delete": chance.happens(0.1),
            "internal": chance.happens(0.1),
            "arguments": {"alternate-exchange": chance.one((*EXCHANGES, 1))} if chance.happens(0.2) else {},
        }
        name = chance.one((*EXCHANGES, *EXCHANGES, "amq.direct", "amq.mine", MISSING))
        path = f"exchanges/{self._vhost()}/{name}"
        if chance.happens(0.05):
            return Request("DELETE", f"{path}?if-unused=true")
        return self._request(path, fields)

    def _binding(self) -> Step:
        chance = self._chance
        source = chance.one((*EXCHANGES[:2], *STANDARD))
        kind, target = chance.one(
            (("q", chance.queue()), ("q", chance.queue()), ("e", chance.one(EXCHANGES)))
        )
        path = f"bindings/{VHOST}/e/{source}/{kind}/{target}"
        key = chance.one(PATTERNS)
        if chance.happens(0.6):
            arguments = chance.match() if chance.happens(0.3) else {}
            return Request("POST", path, self._body({"routing_key": key, "arguments": arguments}))
        if chance.happens(0.4):
            return Request("GET", path)
        shown = (key or "~").replace("#", "%23").replace("*", "%2A")
        return Request(chance.one(("GET", "DELETE")), f"{path}/{shown}")

    def _policy(self) -> Step:
        chance = self._chance
        kind = chance.one(("policies", "operator-policies"))
        keys = OPERATOR_KEYS if kind == "operator-policies" else tuple(POLICY_KEYS)
        fields = {
            "pattern": chance.one(REGEXES),
            "definition": chance.some(POLICY_KEYS, keys, 3, 0.1),
            "priority": chance.one((0, 1, 7)),
            "apply-to": chance.one(("all", "queues", "exchanges")),
        }
        return self._request(f"{kind}/{self._vhost()}/p{chance.below(3)}", fields)

    def _permission(self) -> Step:
        chance = self._chance
        user = chance.one(("limited", "limited", "guest", "nobody"))
        fields = {name: chance.one(REGEXES) for name in ("configure", "write", "read")}
        if chance.happens(0.3):
            topic = {"exchange": chance.exchange(), "write": chance.one(REGEXES), "read": chance.one(REGEXES)}
            # guest needs its own.
            return self._request(f"topic-permissions/{self._vhost()}/{user}", topic, 0.8)
        return self._request(
            f"permissions/{self._vhost()}/{'limited' if user == 'guest' else user}", fields, 0.8
        )

    def _limit(self) -> Step:
        chance = self._chance
        name = chance.one(("max-queues", "max-connections", "max-nonsense"))
        fields = {"value": chance.one((-1, 3, 100, "5", 1.5))}
        if chance.happens(0.2):
            return Request("GET", chance.one(("vhost-limits", f"vhost-limits/{self._vhost()}")))
        return self._request(f"vhost-limits/{self._vhost()}/{name}", fields)

    def _parameter(self) -> Step:
        chance = self._chance
        component = chance.one(("vhost-limits", "nonsense", "operator_policy", "policy"))
        path = f"parameters/{component}/{self._vhost()}/{chance.one(('limits', 'p0'))}"
        return self._request(path, {"value": chance.one(({"max-queues": 9}, {}, 1))})

    def _publish(self) -> Step:
        chance = self._chance
        exchange = chance.one(("amq.default", "amq.default", "amq.topic", *EXCHANGES[:2], MISSING))
        properties: dict[str, Any] = chance.properties()
        properties.pop("message_type", None)
        fields = {
            "routing_key": chance.one(KEYS),
            "properties": properties,
            "payload": chance.one(("", "text", "dGV4dA==", "e")),
            "payload_encoding": chance.one(("string", "string", "base64", "utf8")),
        }
        return Request("POST", f"exchanges/{VHOST}/{exchange}/publish", self._body(fields))

    def _get(self) -> Step:
        chance = self._chance
        modes = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
        fields: dict[str, Any] = {
            "count": chance.one((1, 2, 10, 0, -1)),
            "ackmode": chance.one(modes),
            "encoding": chance.one(("auto", "base64")),
        }
        if fields["count"] > 0:
            # RabbitMQ looks at the words only for messages.
            fields["ackmode"] = chance.value((modes, ("nonsense",)))
        if chance.happens(0.2):
            fields["truncate"] = chance.one((0, 2, 100))
        return Request("POST", f"queues/{VHOST}/{chance.queue()}/get", self._body(fields))

    def _purge(self) -> Step:
        return Request("DELETE", f"queues/{self._vhost()}/{self._chance.queue()}/contents")

    def _list(self) -> Step:
        chance = self._chance
        vhost = self._vhost()
        paths = (
            f"queues/{vhost}",
            f"exchanges/{vhost}",
            f"bindings/{vhost}",
            f"policies/{vhost}",
            f"operator-policies/{vhost}",
            f"permissions/{vhost}",
            f"parameters/vhost-limits/{vhost}",
            # Of a missing virtual host RabbitMQ shows an empty list, and asks for its definitions are faulty.
            f"exchanges/{VHOST}/{chance.one(EXCHANGES)}/bindings/source",
            f"exchanges/{VHOST}/{chance.one(EXCHANGES)}/bindings/destination",
            f"definitions/{VHOST}",
            f"vhosts/{vhost}/permissions",
            f"vhosts/{vhost}/topic-permissions",
            f"topic-permissions/{vhost}/limited",
        )
        query = f"?{chance.one(PAGES)}" if chance.happens(0.4) else ""
        return Request("GET", chance.one(paths) + query, None, USERS[1] if chance.happens(0.1) else USERS[0])

    def _import(self) -> Step:
        chance = self._chance
        queue = {"name": chance.queue(), "durable": True, "auto_delete": False, "arguments": {}}
        exchange = {"name": "x1", "type": "fanout", "durable": True, "auto_delete": False, "internal": False}
        binding = {
            "source": "x1",
            "destination": chance.queue(),
            "destination_type": "queue",
            "routing_key": chance.one(KEYS),
            "arguments": {},
        }
        fields = {
            "queues": [queue],
            "exchanges": [exchange | {"arguments": {}}],
            "bindings": [binding] if chance.happens(0.5) else [],
        }
        return Request("POST", f"definitions/{VHOST}", fields)

    def _odd_path(self) -> Step:
        chance = self._chance
        places = ("queues", "exchanges", "bindings", "policies", "permissions", "nonsense", "vhost-limits")
        path = "/".join(
            (chance.one(places), *chance.random.sample((VHOST, "q0", "e", "x", ""), chance.below(4)))
        )
        return Request("GET", path)
