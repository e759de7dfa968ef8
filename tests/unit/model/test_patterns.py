"""model.patterns: what users write is found as RabbitMQ finds it, and never stops the node."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial

import pcre2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveret.model.patterns import PATTERN_OCTETS_MAX, Pattern, PatternError, compiled, stored, take_costly

HELD_UP_MAX_S = 0.005
"""How long a pattern may hold up other connections (issue 16)."""


def quickest(work: Callable[[], object]) -> float:
    """The processor time that it takes: the best of five, for the machine has others to serve."""
    times = []
    for _ in range(5):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times)


@given(
    text=st.sampled_from(
        ["^a", "a$", "(ab)+c", ".*", "^(?!amq\\.).*", "(a|b)*c{1,2}", "a.*b.*c.*d", "x{2,}", r"(a|b)\1", ""]
    ),
    name=st.text("abcdx.amq", max_size=30),
)
def test_a_pattern_covers_what_python_finds_where_perl_and_python_agree(text: str, name: str) -> None:
    assert Pattern(text).covers(name) == (re.search(text, name) is not None)


CATASTROPHIC = [
    "(a|aa)+$",
    "(a|a)*$",
    "(.*a){12}$",
    "a*a*a*a*a*a*$",
    "(x+x+)+y",
    "^mine" + "[ab]?" * 24 + "[ab]{24}",
    r"\\*" * 7,
    "(?=(a+)+$)",
    "(?!(a|aa)+$)a",
    r"(a*)*\1b",
    "(a?){200}(?=b)a{200}",
    "(?:a?){255}(?<=c)",
    "((?<!aaaa|bb)?)(?s:(?i)a*+){0,255}(?!\\1)",
    "(?=x*)" * 600,
    "(?:\\B){2000}c",
    "(?:\\d|\\w{1,99}){2,9}z",
    "((a?)(?1)?)*$",
    "(" * 200 + "a*" + ")*" * 200 + "(?=b)",
]


@pytest.mark.parametrize("text", CATASTROPHIC)
def test_no_pattern_takes_long_on_any_name(text: str) -> None:
    for name in ("a" * 254 + "b", "x" * 255, "\\" * 255, "ab" * 127, "é" * 127, "mine" + "a" * 250 + "\n"):
        assert quickest(partial(_covers_anew, text, name)) < HELD_UP_MAX_S


@pytest.mark.parametrize(
    "text",
    [
        "((a{1,99}){1,99}){1,99}",
        "((((a{0,20}){0,20}){0,20}){0,20})",
        "(ab{0,255})+?" * 300,
        "[[:alpha:]]{0,255}" * 200,
        "(?i)[^c]" * 500,
        r"(?i:\pL{1,99})" * 290,
        "(?<=(?:a|bb){1,9})" * 200,
        "(?<!" + "|".join("a" * each for each in range(1, 88)) + ")",
        "(" * 2000 + ")" * 2000,
    ],
)
def test_no_pattern_takes_long_to_be_compiled_or_refused(text: str) -> None:
    assert quickest(lambda: _made(text)) < HELD_UP_MAX_S


ATOMS = st.sampled_from(
    [
        r"a",
        r"b",
        r".",
        r"[ab]",
        r"[^c]",
        r"\w",
        r"\d",
        r"\s",
        r"\b",
        r"\B",
        r"^",
        r"$",
        r"(?=a)",
        r"(?!b)",
        r"(?<=a)",
        r"ab",
        r"\1",
        r"(?1)",
        r"[[:alpha:]]",
        r"[]a]",
        r"[a-]",
        r"\x61",
        r"\x{61}",
        r"\012",
        r"\A",
        r"\z",
        r"{",
        r"}",
        r"]",
        r"(?i)A",
        r"(?-i)a",
        r"\pL",
        r"\R",
        r"\h",
        r"\Qa.\E",
        r"(?#x)",
        r"\-",
        r"{,2}",
        r"[a&&b]",
        r"(?:)",
        r"é",
    ]
)
TIMES = st.sampled_from(["", "*", "+", "?", "*?", "+?", "*+", "{2,9}", "{0,255}", "{3}", "{1,99}"])


def _more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    opens = st.sampled_from(["(", "(?:", "(?=", "(?!", "(?>", "(?<!", "(?i:", "(?s:"])
    return (
        st.builds("{}{})".format, opens, inner)
        | st.builds("(?:{}|{})".format, inner, inner)
        | st.builds("({}){}".format, inner, TIMES)
        | st.builds(lambda text, count: (text * count)[:PATTERN_OCTETS_MAX], inner, st.integers(2, 300))
        | st.builds("{}{}".format, inner, inner)
    )


PATTERNS = st.recursive(st.builds("{}{}".format, ATOMS, TIMES), _more, max_leaves=8)
NAMES = st.text("ab1_. ", max_size=255) | st.sampled_from(
    ["a" * 255, "ab" * 127, "\n", "a\n", "\x0b", "é" * 127]
)


@given(text=PATTERNS, name=NAMES)
def test_whatever_is_written_is_quick(text: str, name: str) -> None:
    text = text[:PATTERN_OCTETS_MAX]
    assert quickest(lambda: _made(text)) < HELD_UP_MAX_S
    assert quickest(lambda: _covers_anew(text, name)) < HELD_UP_MAX_S


@given(text=PATTERNS, name=NAMES)
@example(text=r"\s", name="\x0b")
@example(text="a$", name="a\n")
@example(text=r"\v", name="\n")
@example(text="a{,3}b", name="aab")
@example(text=r"(a)\1", name="aa")
@example(text="(?x)a (?=b) # of (", name="ab")
@example(text="(?x)a # of (", name="ab")
@example(text=r"(?=a)\Qa", name="a")
@example(text="a|b(?!c)", name="xb")
def test_a_pattern_means_what_perl_means(text: str, name: str) -> None:
    try:
        pattern = Pattern(text)
        expected = pcre2.compile(_perls(text), jit=False).search(name.encode()) is not None
    except (PatternError, pcre2.LibraryError):
        return
    take_costly()
    covered = pattern.covers(name)
    assert covered == expected or (not covered and text in take_costly())


def _perls(text: str) -> bytes:
    r"""The binding has JavaScript's `\x`."""
    return text.encode().replace(rb"\x{61}", rb"\x61")


def _made(text: str) -> Pattern | None:
    try:
        return Pattern(text)
    except PatternError:
        return None


def _covers_anew(text: str, name: str) -> bool | None:
    """An answer that is not one of those that are kept; compiling is not what is measured."""
    pattern = stored(text)
    pattern._answers.clear()
    return pattern.covers(name)


def test_an_answer_of_the_limited_engine_is_kept() -> None:
    pattern = Pattern("^(?=(a+)+$)")
    name = "a" * 254 + "b"
    take_costly()
    assert not pattern.covers(name)
    assert take_costly() == {"^(?=(a+)+$)": name}
    assert not pattern.covers(name)
    assert not take_costly()


def test_a_name_that_is_too_costly_costs_the_others_nothing() -> None:
    pattern = Pattern(r"^(?!amq\.)(a+)+$")
    assert not pattern.covers("a" * 254 + "b")
    assert pattern.covers("aaa")


def test_a_long_list_of_names_is_served_whole() -> None:
    names = [f"orders.{each * 7919 % 4096:04d}.eu" for each in range(230)]
    text = "^(?:" + "|".join(name.replace(".", r"\.") for name in names) + ")$"
    pattern = Pattern(text)
    assert len(text) > 3900
    assert all(pattern.covers(name) for name in names)
    assert not pattern.covers("orders.9999.eu")
    take_costly()
    assert (
        quickest(lambda: [pattern.covers("orders." * 36), pattern.covers("".join(names)[:255])])
        < HELD_UP_MAX_S
    )
    assert not take_costly()


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        (r"^(?!amq\.).*", "orders", True),
        (r"^(?!amq\.).*", "amq.topic", False),
        (r"^(.)\1", "aab", True),
        (r"^a$", "a\n", True),
        (r"^a\z", "a\n", False),
        (r"\d", "٣", False),  # by octets, so digits are ASCII's
        ("^.{2}$", "é", True),
        (r"^\x{6f}rders", "orders", True),
        (r"^\x6frders", "orders", True),
        ("[[:upper:]]", "a", False),
        ("(?i)ORDERS", "orders", True),
        ("a(?i)B", "ab", True),
        ("^a++b", "aab", True),
        (r"(?<=x)y", "xy", True),
        ("", "anything", True),
        (".*", "", True),
        ("^$", "", True),
    ],
)
def test_the_dialect_is_rabbitmqs(text: str, name: str, found: bool) -> None:
    assert Pattern(text).covers(name) is found


@pytest.mark.parametrize(
    "text", ["(", "*", "[a", "a{2,1}", "(?P<x>", r"\x{100}", r"\u0041", "(*COMMIT)a", "(?R)?a"]
)
def test_what_is_no_pattern_is_told_with_its_place(text: str) -> None:
    with pytest.raises(PatternError) as refused:
        compiled(text)
    assert refused.value.reason
    assert refused.value.position >= 0


def test_a_pattern_that_is_too_long_is_refused() -> None:
    Pattern("a" * PATTERN_OCTETS_MAX)
    with pytest.raises(PatternError, match="longer than 4096 octets"):
        Pattern("a" * (PATTERN_OCTETS_MAX + 1))


def test_what_was_accepted_once_and_is_not_served_any_more_covers_nothing() -> None:
    assert not stored(r"(?P=gone)").covers("anything")


def test_case_may_be_ignored() -> None:
    assert Pattern("ORDERS", ignore_case=True).covers("my-orders")
    assert not Pattern("ORDERS").covers("my-orders")
