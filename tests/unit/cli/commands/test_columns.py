from __future__ import annotations

import pytest

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.commands.columns import chosen

KNOWN = ("name", "messages", "consumers")


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        (None, ["name"]),
        ([], ["name"]),
        (["messages", "name"], ["messages", "name"]),
        (["messages,name", "consumers"], ["messages", "name", "consumers"]),
        (["consumers messages"], ["consumers", "messages"]),
    ],
)
def test_columns_are_those_that_are_named_in_their_order(given: list[str] | None, columns: list[str]) -> None:
    assert chosen(given, ["name"], KNOWN) == columns


def test_every_column_that_is_not_known_is_named_and_so_are_all_that_are() -> None:
    with pytest.raises(CtlError) as refused:
        chosen(["bogus,name", "other"], ["name"], KNOWN)
    assert refused.value.status == exits.USAGE
    assert str(refused.value) == (
        "Info key(s) bogus,other are not supported; known are name, messages, consumers"
    )
