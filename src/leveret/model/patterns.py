"""Regular expressions of users: in permissions, policies, filters and listings.

Their syntax is RabbitMQ's: Perl's, on octets, found anywhere in a name. PCRE2 decides which texts are expressions. RE2,
whose time is linear, matches all expressions that RE2 supports; PCRE2 matches the rest (look-around, back references),
with one limit of steps for the whole search. A limit of steps needs no clock: a pattern has the same answer for a name
on every node at any time. See docs/adr/0012-regular-expressions.md.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pcre2
import re2

PATTERN_OCTETS_MAX: Final = 4096
_ANSWERS_MAX: Final = 65_536

_NOT_LINEAR: Final = re.compile(rb"\\[1-9pPvQ]|\{ *,|\{ +[0-9]|\{[0-9]+ +[,}]|\{[0-9]+, +[0-9}]")
"""Constructs that RE2 reads differently, or matches only at a high cost: PCRE2 matches them."""

_OF_THE_WHOLE: Final = re.compile(rb"\(\*[A-Za-z]|\(\?(?:R|[+-]?0)\)|\\g[<'{]?[+-]?0")
"""Constructs that would change their meaning inside a longer pattern: verbs, and recursion into the whole pattern."""

_ESCAPE: Final = re.compile(rb"\\(?:x\{ *([0-9A-Fa-f]+) *\}|x([0-9A-Fa-f]{0,2})|.)", re.DOTALL)
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
r"""Ends of lines and vertical tabs: the two engines disagree about them (`$`, `\s`)."""

_RE2_MEMORY_BYTES: Final = 20 << 10
"""Room for 1,000 instructions. If the states do not fit, RE2 visits all of them for each octet."""

_COUNTED: Final = re.compile(rb"\{(?:[0-9]+,)?([0-9]+)(?=[,}])")
_COPIES_MAX: Final = 1000
"""More repetitions than this in sum do not fit, and RE2 needs long to find out."""

_LITERAL: Final = re.compile(rb"(?:\(\?(?::|i[:)])|[^*+?{\\[.]|\\[^A-Za-z0-9])*")
_RE2_LITERAL_MEMORY_BYTES: Final = 512 << 10
"""A sequence of names has few states, regardless of the number of names."""


class _Size(NamedTuple):
    """For a pattern of which `copies` copies fit into 64 KiB in PCRE2, the limit of steps for one name."""

    copies: int
    steps: int


_SIZES: Final = (_Size(64, 2000), _Size(16, 800), _Size(4, 300))
"""One step may visit the whole compiled pattern, so a longer pattern gets fewer steps."""

_CLOSERS: Final = (b")", b"\n)", rb"\E)")
"""The ends of a group around a pattern that may itself end within a comment or a quotation."""


_COSTLY_MAX: Final = 64
_costly: Final[dict[str, bytes]] = {}
"""Expressions that exceeded their steps, each with one such name; not yet reported."""


class PatternError(ValueError):
    """The text is no regular expression; `position` is the place of the fault."""

    def __init__(self, reason: str, position: int) -> None:
        """`reason` is the text of the library."""
        super().__init__(f"{reason} at position {position}")
        self.reason = reason
        self.position = position


class Pattern:
    """One regular expression, to be found anywhere in a name."""

    __slots__ = ("_answers", "_is_in_all", "_limited", "_linear", "_octets", "_text")

    def __init__(self, text: str, *, ignore_case: bool = False) -> None:
        """Compile.

        Raises:
            PatternError: the text is no regular expression, or one that Leveret does not serve.
        """
        octets = text.encode("utf-8", "surrogatepass")
        if len(octets) > PATTERN_OCTETS_MAX:
            raise PatternError(
                f"the expression is longer than {PATTERN_OCTETS_MAX} octets", PATTERN_OCTETS_MAX
            )
        self._octets = (b"(?i)" if ignore_case else b"") + _with_perls_escapes(octets)
        _check(self._octets)
        self._linear = _linear(self._octets)
        self._limited = _limited(self._octets) if self._linear is None else None
        self._answers: dict[bytes, bool] = {}
        self._is_in_all = text in ("", ".*")
        self._text = text

    def covers(self, name: str) -> bool:
        """Return whether the expression is found in `name`. A search that exceeds PCRE2's steps counts as not found."""
        if self._is_in_all:
            return True
        octets = name.encode("utf-8", "surrogatepass")
        if self._linear is not None and not _CONTROL.search(octets):
            return self._linear.search(octets) is not None
        answer = self._answers.get(octets)
        if answer is None:
            if len(self._answers) >= _ANSWERS_MAX:
                self._answers.clear()
            answer = self._answers[octets] = self._found(octets)
        return answer

    def _found(self, octets: bytes) -> bool:
        if self._limited is None:
            self._limited = _limited(self._octets)
        try:
            return self._limited.search(octets) is not None
        except pcre2.LibraryError:
            if len(_costly) < _COSTLY_MAX:
                _costly.setdefault(self._text, octets)
            return False


def _with_perls_escapes(octets: bytes) -> bytes:
    r"""Convert `\x` and `\u`: the binding reads JavaScript's, but Perl has `\x{hh}`, and `\x` with fewer digits.

    Raises:
        PatternError: Perl's expressions have no such escape.
    """

    def rewritten(found: re.Match[bytes]) -> bytes:
        whole, braced, digits = found[0], found[1], found[2]
        if whole in (rb"\u", rb"\U"):
            raise PatternError("\\u and \\U are not supported", found.start())
        if braced is None and digits is None:
            return whole
        value = int(braced or digits or b"0", 16)
        if value > 0xFF:
            raise PatternError("character code point value in \\x{} is too large", found.start())
        return rb"\x%02x" % value

    return _ESCAPE.sub(rewritten, octets)


def _check(octets: bytes) -> None:
    """Let PCRE2 check that the text is a regular expression at all."""
    try:
        _perl(octets)
    except pcre2.PatternError as error:
        raise PatternError(str(error.msg).rpartition("; ")[2], error.pos) from None


def _linear(octets: bytes) -> Any:
    """Return the expression for RE2; None if RE2 does not support it, or reads it differently."""
    copies = sum(int(found[:5]) for found in _COUNTED.findall(octets))
    if _NOT_LINEAR.search(octets) or copies > _COPIES_MAX:
        return None
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = _RE2_LITERAL_MEMORY_BYTES if _LITERAL.fullmatch(octets) else _RE2_MEMORY_BYTES
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(octets, options)
    except re2.error:
        return None


def _limited(octets: bytes) -> Any:
    """Return the expression for PCRE2, under one limit of steps for the whole search.

    PCRE2 counts the steps anew at each octet at which a search begins. So the search is a part of the pattern, and the
    pattern is anchored.

    Raises:
        PatternError: the expression is too large, or has a construct that cannot stand within a longer pattern.
    """
    found = _OF_THE_WHOLE.search(octets)
    if found:
        raise PatternError("verbs and recursion into the whole pattern are not supported", found.start())
    for size in _SIZES:
        for closer in _CLOSERS:
            group = b"(?:" + octets + closer
            try:
                _perl(group + b"{%d}" % size.copies)
                return _perl(rb"(*NO_JIT)(*LIMIT_MATCH=%d)\A(?s:.*?)" % size.steps + group)
            except pcre2.PatternError:
                continue
    raise PatternError("the regular expression is too large", 0)


def _perl(octets: bytes) -> Any:
    return pcre2.compile(octets, jit=False)


@lru_cache(maxsize=1024)
def compiled(text: str) -> Pattern:
    """Return a pattern, compiled once.

    Raises:
        PatternError: the text is no regular expression.
    """
    return Pattern(text)


def stored(text: str) -> Pattern:
    """As `compiled`, for a text that was accepted before: if it is no expression any more, it matches nothing."""
    try:
        return compiled(text)
    except PatternError:
        return compiled("(?!)")


def take_costly() -> dict[str, str]:
    """Return, once, the expressions that exceeded their steps, each with one such name."""
    taken = {text: name.decode("utf-8", "replace") for text, name in _costly.items()}
    _costly.clear()
    return taken
