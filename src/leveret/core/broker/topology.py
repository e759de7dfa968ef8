"""The exchanges and bindings of one vhost, and the route of a message through them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from leveret.core.broker.policies import NOTHING_APPLIES, EffectivePolicy, VhostPolicies, alternate_exchange
from leveret.core.broker.routing import ROUTERS, VISITS_MAX, VISITS_OF_A_KEY, Headers, Router, TooManyPatterns
from leveret.core.queues.counters import Counters
from leveret.core.rules.queue_arguments import missing_copies
from leveret.core.rules.validation import STREAM, check_exchange_arguments, check_name, queue_type
from leveret.model.definitions import Binding, Exchange
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import InvalidCommand

if TYPE_CHECKING:
    from leveret.core.queues.queue import Queue

DEFAULT_EXCHANGE: Final = ""
TRACE_EXCHANGE: Final = "amq.rabbitmq.trace"
PREDECLARED: Final = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.headers": "headers",
    "amq.match": "headers",
    TRACE_EXCHANGE: "topic",
    "amq.topic": "topic",
}


def check_exchange(exchange: Exchange) -> None:
    """Refuse an invalid exchange.

    Raises:
        InvalidCommand: its name is too long, or its type is unknown.
        PreconditionFailed: its arguments are invalid.
    """
    check_name("exchange", exchange.name)
    check_exchange_type(exchange.type)
    check_exchange_arguments(exchange)


def check_exchange_type(kind: str) -> None:
    """Refuse an unknown type.

    Raises:
        InvalidCommand: names it.
    """
    if kind not in ROUTERS:
        raise InvalidCommand(f"unknown exchange type '{kind}'")


class ExchangeState:
    """An exchange with its bindings as a source."""

    __slots__ = ("alternate", "applied", "bindings", "counters", "definition", "router")

    def __init__(self, definition: Exchange) -> None:
        """No bindings yet."""
        self.definition = definition
        self.router: Router = ROUTERS[definition.type]()
        self.bindings: dict[tuple[str, ...], Binding] = {}
        self.counters = Counters()
        self.applied = NOTHING_APPLIES
        self.alternate = alternate_exchange(definition.arguments, NOTHING_APPLIES)

    def apply_policies(self, applied: EffectivePolicy) -> None:
        """Take the policies that apply to the exchange from now on."""
        self.applied = applied
        self.alternate = alternate_exchange(self.definition.arguments, applied)


class Topology:
    """One vhost's exchanges by name, and all bindings by their destination.

    Attributes:
        queues: the vhost's queues by name, exclusive ones too, the oldest first.
        queue_policies: the effective policies of the queues to which one applies.
        unmirrored: policies that ask for mirrors of transient queues, each noted once: name, mode and parameters.
        notices: sentences about those, for the log; the runtime empties it.
        looked_at: the number of comparisons of a message with a binding, so far.
    """

    def __init__(self, vhost: str, notices: list[str] | None = None) -> None:
        """Begin with the predeclared exchanges, and no bindings; several vhosts may share their `notices`."""
        self.vhost = vhost
        self.unmirrored: set[tuple[str, str, str]] = set()
        self.notices = notices if notices is not None else []
        self.exchanges: dict[str, ExchangeState] = {}
        self.policies = VhostPolicies()
        self.queues: dict[str, Queue] = {}
        self.queue_policies: dict[str, EffectivePolicy] = {}
        self.looked_at = 0
        self._visited = 0
        self._into: dict[tuple[str, str], dict[tuple[str, ...], Binding]] = {}
        for name, kind in PREDECLARED.items():
            internal = name == TRACE_EXCHANGE
            self.exchanges[name] = ExchangeState(
                Exchange(name=name, vhost=vhost, type=kind, internal=internal)
            )

    def bindings(self) -> list[Binding]:
        """All bindings except those of the default exchange."""
        return [binding for into in self._into.values() for binding in into.values()]

    def bindings_into(self, destination_type: str, name: str) -> list[Binding]:
        """The bindings of a queue or exchange as their destination."""
        return list(self._into.get((destination_type, name), {}).values())

    def has_binding(self, binding: Binding) -> bool:
        """Whether exactly this binding exists."""
        state = self.exchanges.get(binding.source)
        return state is not None and binding.key in state.bindings

    def bind(self, binding: Binding) -> None:
        """Add a binding between existing ends; adding it twice is no error."""
        state = self.exchanges[binding.source]
        if binding.key in state.bindings:
            return
        state.bindings[binding.key] = binding
        state.router.add(binding)
        self._into.setdefault((binding.destination_type, binding.destination), {})[binding.key] = binding

    def unbind(self, binding: Binding) -> None:
        """Remove an existing binding."""
        state = self.exchanges[binding.source]
        existing = state.bindings.pop(binding.key)
        state.router.remove(existing)
        end = (binding.destination_type, binding.destination)
        del self._into[end][binding.key]
        if not self._into[end]:
            del self._into[end]

    def missing_copies(self, wanted: QueueDefinition, nodes: int) -> tuple[int, str]:
        """The number of copies that a stream asks for and does not get on so many nodes, and a sentence about it."""
        if queue_type(wanted.arguments) != STREAM:
            return 0, ""
        return missing_copies(wanted, self.policies.for_queue(wanted.name, STREAM).definition, nodes)

    def route(
        self, exchange: str, routing_key: str, headers: Headers, copies: Iterable[str] = ()
    ) -> list[str]:
        """The names of the queues that get the message, each once.

        `copies` are further routing keys. As in RabbitMQ, a message has all of its keys at each exchange that it comes
        to, and goes to the alternate of an exchange where none of them leads on.

        Raises:
            TooManyPatterns: topic exchanges have too many patterns that may match.
        """
        keys = [routing_key, *copies]
        if exchange == DEFAULT_EXCHANGE:
            return list(dict.fromkeys(key for key in keys if key in self.queues))
        self._visited = 0
        queues: dict[str, None] = {}
        seen, waiting = {exchange}, [exchange]
        while waiting:
            for each in self._step(waiting.pop(), keys, headers, queues):
                if each not in seen:
                    seen.add(each)
                    waiting.append(each)
        return list(queues)

    def _step(self, exchange: str, keys: list[str], headers: Headers, queues: dict[str, None]) -> list[str]:
        """Find the queues that one exchange has for a message; the exchanges to which the message goes from there."""
        state = self.exchanges.get(exchange)
        if state is None:
            return []
        router = state.router
        onward: list[str] = []
        matched = False
        # A message may have 20,000 keys, of which each visits some nodes where it matches one pattern.
        visits_max = VISITS_MAX + VISITS_OF_A_KEY * len(keys)
        for key in keys[:1] if router.ignores_key else keys:
            found = router.match(key, headers)
            self.looked_at += router.compared
            self._visited += router.visited
            if self._visited > visits_max:
                raise TooManyPatterns(key)
            for binding in found:
                matched = True
                if binding.destination_type == "queue":
                    queues[binding.destination] = None
                else:
                    onward.append(binding.destination)
        if not matched and state.alternate:
            onward.append(state.alternate)
        return onward
