"""core.rules.erlang_terms: values in Erlang's notation, as RabbitMQ's refusals show them."""

from __future__ import annotations

import pytest

from leveret.core.rules.erlang_terms import binary, pairs, quoted, term


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (-5, "-5"),
        (1.5, "1.5"),
        ("", "<<>>"),
        ('a"b\\', '<<"a\\"b\\\\">>'),
        ("é", '<<"é"/utf8>>'),
        ([1, "a", []], '[1,<<"a">>,[]]'),
        ({"b": 1, "a": None}, '#{<<"a">> => null,<<"b">> => 1}'),
    ],
)
def test_a_value_is_written_as_erlang_writes_it(value: object, text: str) -> None:
    assert term(value) == text


def test_an_object_may_be_told_as_pairs_and_a_string_in_quotes() -> None:
    assert pairs({"b": 1, "a": "x"}) == '[{<<"a">>,<<"x">>},{<<"b">>,1}]'
    assert quoted("a\nb\tc\r") == '"a\\nb\\tc\\r"'


def test_octets_are_a_string_if_all_are_printable_else_numbers() -> None:
    assert [binary(octets) for octets in (b"", b'a"b', b"a\n", b"\x00\xff")] == [
        "<<>>",
        '<<"a\\"b">>',
        "<<97,10>>",
        "<<0,255>>",
    ]
