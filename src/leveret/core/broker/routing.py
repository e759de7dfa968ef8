"""Routing: from an exchange, a routing key and headers to the queues that get the message.

Each exchange type keeps its bindings in the structure that suits its lookup: a dict for direct, a trie of
words for topic, a plain dict for fanout, bindings by a pair of theirs for headers (AMQP 0-9-1 section 3.1.3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from leveret.core.rules.validation import same_value
from leveret.model.definitions import Binding, as_argument
from leveret.model.errors import PreconditionFailed
from leveret.wire.content_header import named_headers

VISITS_MAX: Final = 20_000
"""The most nodes of topic exchanges' tries that are visited for one message, which takes 15 ms.

A few thousand patterns such as `#.a.#.*.#` match a long key in very many ways, and other clients wait meanwhile. A key
that is matched by few patterns visits few nodes, however many other patterns there are.
"""
VISITS_OF_A_KEY: Final = 8
"""The further nodes for each of a message's keys, which is in proportion to the octets that the client has sent."""
_VISITS_OF_A_COMPARISON: Final = 4

Headers: TypeAlias = Callable[[Container[bytes]], dict[str, Any]]
"""Decodes those of a message's headers that have one of some names; most exchanges need none."""


def no_headers(names: Container[bytes]) -> dict[str, Any]:
    """The headers of a message that has none."""
    return {}


class TooManyPatterns(PreconditionFailed):
    """The patterns of topic exchanges match a routing key in too many ways."""

    def __init__(self, routing_key: str) -> None:
        """`routing_key` is the message's."""
        super().__init__(
            f"routing key '{routing_key[:80]}' is matched in too many ways by patterns of topic exchanges: "
            "use fewer patterns with several '#' and '*', or a shorter key"
        )


class MessageHeaders:
    """The headers of a message.

    Attributes:
        asked: the names that exchanges asked for: if there are any, the message's targets depend on these headers.
    """

    __slots__ = ("_header", "asked")

    def __init__(self, header: bytes) -> None:
        """Take a content header's payload."""
        self._header = header
        self.asked: list[Container[bytes]] = []

    def read(self, names: Container[bytes]) -> dict[str, Any]:
        """See Headers.

        Raises:
            SyntaxFault: they do not parse.
        """
        self.asked.append(names)
        return named_headers(self._header, names)


_Bindings: TypeAlias = dict[tuple[str, ...], Binding]
"""Bindings by key, in order of creation; removing one of thousands touches no other."""


class Router(Protocol):
    """The bindings of one exchange, and the matching of messages against them.

    Attributes:
        ignores_key: whether the routing key makes no difference.
        compared: the number of bindings that the last message was compared with one by one; 0 if it was looked up.
        visited: the number of nodes of a trie that were visited for the last routing key.
    """

    ignores_key: ClassVar[bool]
    compared: int
    visited: int

    def add(self, binding: Binding) -> None:
        """Add a binding that does not exist yet."""

    def remove(self, binding: Binding) -> None:
        """Remove an existing binding."""

    def match(self, routing_key: str, headers: Headers) -> Iterable[Binding]:
        """The matching bindings, each once.

        Raises:
            TooManyPatterns: a topic exchange has too many patterns that may match.
        """


class Direct:
    """Matches equal routing keys."""

    ignores_key: ClassVar[bool] = False

    def __init__(self) -> None:
        """No bindings."""
        self.compared = self.visited = 0
        self._by_key: dict[str, _Bindings] = {}

    def add(self, binding: Binding) -> None:
        """See Router."""
        self._by_key.setdefault(binding.routing_key, {})[binding.key] = binding

    def remove(self, binding: Binding) -> None:
        """See Router."""
        same_key = self._by_key[binding.routing_key]
        del same_key[binding.key]
        if not same_key:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, headers: Headers) -> Iterable[Binding]:
        """See Router."""
        return self._by_key.get(routing_key, {}).values()


class Fanout:
    """Matches every message."""

    ignores_key: ClassVar[bool] = True

    def __init__(self) -> None:
        """No bindings."""
        self.compared = self.visited = 0
        self._bindings: _Bindings = {}

    def add(self, binding: Binding) -> None:
        """See Router."""
        self._bindings[binding.key] = binding

    def remove(self, binding: Binding) -> None:
        """See Router."""
        del self._bindings[binding.key]

    def match(self, routing_key: str, headers: Headers) -> Iterable[Binding]:
        """See Router."""
        return self._bindings.values()


class Topic:
    """Matches patterns of words between dots; `*` is one word, `#` any number of them."""

    ignores_key: ClassVar[bool] = False

    def __init__(self) -> None:
        """No bindings."""
        self.compared = self.visited = 0
        self._root = _Word()

    def add(self, binding: Binding) -> None:
        """See Router."""
        node = self._root
        for word in _words(binding.routing_key):
            if word not in node.next:
                node.next[word] = _Word(repeats=word == "#")
            node = node.next[word]
        node.bindings[binding.key] = binding

    def remove(self, binding: Binding) -> None:
        """See Router."""
        path = [self._root]
        words = _words(binding.routing_key)
        for word in words:
            path.append(path[-1].next[word])
        del path[-1].bindings[binding.key]
        for parent, word, node in zip(reversed(path[:-1]), reversed(words), reversed(path), strict=False):
            if node.bindings or node.next:
                break
            del parent.next[word]

    def match(self, routing_key: str, headers: Headers) -> Iterable[Binding]:
        """See Router."""
        nodes = _with_empty_many({self._root: None})
        self.visited = len(nodes)
        for word in _words(routing_key):
            after: dict[_Word, None] = {}
            for node in nodes:
                if node.repeats:
                    after[node] = None
                for step in (word, "*"):
                    child = node.next.get(step)
                    if child is not None and not child.repeats:
                        after[child] = None
            nodes = _with_empty_many(after)
            self.visited += len(nodes)
            if self.visited > VISITS_MAX:
                raise TooManyPatterns(routing_key)
        self.compared = self.visited // _VISITS_OF_A_COMPARISON
        return [binding for node in nodes for binding in node.bindings.values()]


def _words(key: str) -> list[str]:
    """The words between dots; an empty key has none."""
    return key.split(".") if key else []


class _Word:
    """A node of the topic trie: its successors, and the bindings that end here; a `#` node may repeat."""

    __slots__ = ("bindings", "next", "repeats")

    def __init__(self, *, repeats: bool = False) -> None:
        self.next: dict[str, _Word] = {}
        self.bindings: _Bindings = {}
        self.repeats = repeats


def _with_empty_many(nodes: dict[_Word, None]) -> dict[_Word, None]:
    """The nodes, and the nodes behind a `#` that stands for no word.

    The search keeps sets of nodes, word by word: for any number of `#`, it visits a node once a word.
    """
    waiting = list(nodes)
    while waiting:
        many = waiting.pop().next.get("#")
        if many is not None and many not in nodes:
            nodes[many] = None
            waiting.append(many)
    return nodes


_Pair: TypeAlias = tuple[str, type | None, Any]
"""A key, the type of its value and the value; no type for a void value, which equals any, and for tables and lists."""


class HeadersMatch:
    """Matches header tables; `x-match` asks for all pairs or for any (3.1.3.4).

    A binding that asks for all of its pairs is kept under one of them, the one with the fewest bindings, and one that
    asks for any pair under each. So a message is compared with the bindings of its own pairs only.
    """

    ignores_key: ClassVar[bool] = True

    def __init__(self) -> None:
        """No bindings."""
        self.compared = self.visited = 0
        self._unconditional: _Bindings = {}
        self._by_pair: dict[_Pair, _Bindings] = {}
        self._pairs: dict[tuple[str, ...], list[_Pair]] = {}
        self._names: Counter[bytes] = Counter()
        """The keys of the bindings' arguments: the headers that make a difference."""

    def add(self, binding: Binding) -> None:
        """See Router."""
        pairs = [_pair(key, value) for key, value in _counting(binding.arguments)]
        self._names.update(_names_of(pairs))
        needs_all = _needs_all(binding.arguments)
        if needs_all and not pairs:
            self._unconditional[binding.key] = binding
        elif needs_all:
            pairs = [min(pairs, key=lambda pair: len(self._by_pair.get(pair, ())))]
        self._pairs[binding.key] = pairs
        for pair in pairs:
            self._by_pair.setdefault(pair, {})[binding.key] = binding

    def remove(self, binding: Binding) -> None:
        """See Router."""
        self._unconditional.pop(binding.key, None)
        self._names -= Counter(_names_of(_counting(binding.arguments)))
        for pair in self._pairs.pop(binding.key):
            same = self._by_pair[pair]
            del same[binding.key]
            if not same:
                del self._by_pair[pair]

    def match(self, routing_key: str, headers: Headers) -> Iterable[Binding]:
        """See Router."""
        existing = headers(self._names)
        found = dict(self._unconditional)
        for key, value in existing.items():
            for pair in {_pair(key, as_argument(value)), (key, None, None)}:
                found.update(self._by_pair.get(pair, {}))
        self.compared = len(found)
        return [binding for binding in found.values() if headers_match(binding.arguments, existing)]


def _pair(key: str, value: Any) -> _Pair:
    is_found_by_value = value is not None and not isinstance(value, dict | list)
    return (key, type(value), value) if is_found_by_value else (key, None, None)


def _names_of(pairs: Iterable[tuple[Any, ...]]) -> list[bytes]:
    """The keys of pairs as they stand in a message."""
    return [pair[0].encode(errors="surrogatepass") for pair in pairs]


def _counting(arguments: dict[str, Any]) -> list[tuple[str, Any]]:
    """The pairs of a binding's arguments that are compared; keys that begin with `x-` only in the `-with-x` modes."""
    with_x = arguments.get("x-match") in ("all-with-x", "any-with-x")
    return [
        (key, value)
        for key, value in arguments.items()
        if key != "x-match" and (with_x or not key.startswith("x-"))
    ]


def _needs_all(arguments: dict[str, Any]) -> bool:
    return arguments.get("x-match", "all") not in ("any", "any-with-x")


def headers_match(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
    """Whether headers match the arguments of a headers binding.

    Keys that begin with `x-` count only in the `-with-x` modes; a void value matches any value. Values are equal only
    within one type: neither 1.0 nor true nor "1" equals 1.
    """
    found = (
        key in headers and (value is None or same_value(as_argument(headers[key]), value))
        for key, value in _counting(arguments)
    )
    return all(found) if _needs_all(arguments) else any(found)


ROUTERS: dict[str, type[Direct] | type[Fanout] | type[Topic] | type[HeadersMatch]] = {
    "direct": Direct,
    "fanout": Fanout,
    "topic": Topic,
    "headers": HeadersMatch,
}
