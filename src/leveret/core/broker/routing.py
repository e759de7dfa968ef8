"""Routing: from an exchange, a routing key and headers to the queues that get the message.

Each exchange type keeps its bindings in the structure that suits its lookup: a dict for direct, a trie of
words for topic, plain lists for fanout and headers (AMQP 0-9-1 section 3.1.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol, TypeAlias

from leveret.core.rules.validation import same_value
from leveret.model.definitions import Binding, as_argument

Headers = Callable[[], dict[str, Any]]
"""Decodes a message's headers on demand; most exchanges do not need them."""


_Bindings: TypeAlias = dict[tuple[str, ...], Binding]
"""Bindings by key, in order of creation; removing one of thousands touches no other."""


class Router(Protocol):
    """The bindings of one exchange, and the matching of messages against them.

    Attributes:
        ignores_key: whether the routing key makes no difference.
        looks_at_each: whether each message is compared with every binding.
    """

    ignores_key: ClassVar[bool]
    looks_at_each: ClassVar[bool]

    def add(self, binding: Binding) -> None:
        """Add a binding that does not exist yet."""

    def remove(self, binding: Binding) -> None:
        """Remove an existing binding."""

    def match(self, routing_key: str, headers: Headers) -> Iterable[Binding]:
        """The matching bindings, each once."""


class Direct:
    """Matches equal routing keys."""

    ignores_key: ClassVar[bool] = False
    looks_at_each: ClassVar[bool] = False

    def __init__(self) -> None:
        """No bindings."""
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
    looks_at_each: ClassVar[bool] = False

    def __init__(self) -> None:
        """No bindings."""
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
    looks_at_each: ClassVar[bool] = False

    def __init__(self) -> None:
        """No bindings."""
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


class HeadersMatch:
    """Matches header tables; `x-match` asks for all pairs or for any (3.1.3.4)."""

    ignores_key: ClassVar[bool] = True
    looks_at_each: ClassVar[bool] = True

    def __init__(self) -> None:
        """No bindings."""
        self._bindings: _Bindings = {}

    def add(self, binding: Binding) -> None:
        """See Router."""
        self._bindings[binding.key] = binding

    def remove(self, binding: Binding) -> None:
        """See Router."""
        del self._bindings[binding.key]

    def match(self, routing_key: str, headers: Headers) -> Iterable[Binding]:
        """See Router."""
        existing = headers()
        return [binding for binding in self._bindings.values() if headers_match(binding.arguments, existing)]


def headers_match(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
    """Whether headers match the arguments of a headers binding.

    Keys that begin with `x-` count only in the `-with-x` modes; a void value matches any value. Values are equal only
    within one type: neither 1.0 nor true nor "1" equals 1.
    """
    mode = arguments.get("x-match", "all")
    with_x = mode in ("all-with-x", "any-with-x")
    found = (
        key in headers and (value is None or same_value(as_argument(headers[key]), value))
        for key, value in arguments.items()
        if key != "x-match" and (with_x or not key.startswith("x-"))
    )
    return any(found) if mode in ("any", "any-with-x") else all(found)


ROUTERS: dict[str, type[Direct] | type[Fanout] | type[Topic] | type[HeadersMatch]] = {
    "direct": Direct,
    "fanout": Fanout,
    "topic": Topic,
    "headers": HeadersMatch,
}
