"""Regular expressions that users write: in permissions, policies, filters and listings.

They are RabbitMQ's: Perl's, by octets, found anywhere in a name. PCRE2 says what is one. RE2, whose time is
linear, answers for all that it can express; the rest (look-around, back references) is PCRE2's, with a limit
of steps that is one for the whole search. A step limit is no clock: the same pattern has the same answer for
a name on every node and on every day. See docs/adr/0012-regular-expressions.md.
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
"""What RE2 takes as something else, or only at a cost: it is PCRE2's alone."""

_OF_THE_WHOLE: Final = re.compile(rb"\(\*[A-Za-z]|\(\?(?:R|[+-]?0)\)|\\g[<'{]?[+-]?0")
"""What would mean something else within a longer pattern: verbs, and recursion into all of it."""

_ESCAPE: Final = re.compile(rb"\\(?:x\{ *([0-9A-Fa-f]+) *\}|x([0-9A-Fa-f]{0,2})|.)", re.DOTALL)
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
"""Ends of lines and vertical tabs, of which the engines think differently (`$`, `\\s`)."""

_RE2_MEMORY_BYTES: Final = 20 << 10
"""Room for 1,000 instructions: when states do not fit, RE2 goes through all of them for each octet."""

_COUNTED: Final = re.compile(rb"\{(?:[0-9]+,)?([0-9]+)(?=[,}])")
_COPIES_MAX: Final = 1000
"""What is repeated more often in sum finds no room either, and RE2 takes long to find that out."""

_LITERAL: Final = re.compile(rb"(?:\(\?(?::|i[:)])|[^*+?{\\[.]|\\[^A-Za-z0-9])*")
_RE2_LITERAL_MEMORY_BYTES: Final = 512 << 10
"""Names in a row have few states, however many there are."""


class _Size(NamedTuple):
    """A pattern that PCRE2 finds room for `copies` times, in 64 KiB, may take so many `steps` for a name."""

    copies: int
    steps: int


_SIZES: Final = (_Size(64, 2000), _Size(16, 800), _Size(4, 300))
"""A step may run through all of the compiled pattern: the longer that is, the fewer there may be."""

_CLOSERS: Final = (b")", b"\n)", rb"\E)")
"""What ends a group around a pattern that may itself end within a comment or a quotation."""


_COSTLY_MAX: Final = 64
_costly: Final[dict[str, bytes]] = {}
"""Expressions that did not come to an end within their steps, each with such a name; not yet told."""


class PatternError(ValueError):
    """Not a regular expression; `position` is where that shows."""

    def __init__(self, reason: str, position: int) -> None:
        """`reason` is the library's text."""
        super().__init__(f"{reason} at position {position}")
        self.reason = reason
        self.position = position


class Pattern:
    """One regular expression, to be found anywhere in a name."""

    __slots__ = ("_answers", "_is_in_all", "_limited", "_linear", "_octets", "_text")

    def __init__(self, text: str, *, ignore_case: bool = False) -> None:
        """Compile.

        Raises:
            PatternError: it is no regular expression, or none that is served.
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
        """Whether the expression is found in `name`; what PCRE2's steps do not suffice for is not."""
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
    r"""The binding reads `\x` and `\u` as JavaScript does; Perl has `\x{hh}`, and `\x` with fewer digits.

    Raises:
        PatternError: an escape that Perl's expressions have not.
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
    """Have PCRE2 say whether it is a regular expression at all."""
    try:
        _perl(octets)
    except pcre2.PatternError as error:
        raise PatternError(str(error.msg).rpartition("; ")[2], error.pos) from None


def _linear(octets: bytes) -> Any:
    """It for RE2, None if that cannot express it, or would take it for something else."""
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
    """It for PCRE2, such that one limit of steps holds for the whole search.

    PCRE2 counts the steps anew from each octet that a search begins at. So the search is part of the pattern,
    which is anchored.

    Raises:
        PatternError: it is not served: too large, or with what cannot stand within a longer pattern.
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
    """A pattern, compiled once.

    Raises:
        PatternError: it is no regular expression.
    """
    return Pattern(text)


def stored(text: str) -> Pattern:
    """As `compiled`, for what was accepted once: what is none any more covers nothing."""
    try:
        return compiled(text)
    except PatternError:
        return compiled("(?!)")


def take_costly() -> dict[str, str]:
    """The expressions that took more steps than there are for some name, each with such a name; told once."""
    taken = {text: name.decode("utf-8", "replace") for text, name in _costly.items()}
    _costly.clear()
    return taken
