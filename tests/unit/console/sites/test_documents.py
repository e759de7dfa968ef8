from __future__ import annotations

import json
from typing import Any

import pytest

from leveret.console.sites.documents import NotUnderstood, QueueStatus, read_document
from leveret.console.sites.facts import OFTEN, SELDOM


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"<html>",
        b"{",
        b"[1]",
        b'[{"name": 5, "vhost": "/"}]',
        b"\xff\xfe",
        b"[" * 100_000,
        b'[{"name": "q"}]',
    ],
)
def test_garbage_is_not_understood(octets: bytes) -> None:
    with pytest.raises(NotUnderstood):
        read_document(octets, list[QueueStatus])


def test_fields_that_are_not_known_are_ignored_and_missing_ones_have_defaults() -> None:
    [queue] = read_document(b'[{"name": "q", "vhost": "/", "new": {"a": 1}}]', list[QueueStatus])
    assert (queue.type, queue.messages, queue.policy) == ("classic", 0, None)


def test_every_document_of_an_older_site_may_be_almost_empty() -> None:
    for question in (*OFTEN, *SELDOM):
        empty: Any = [] if "list" in str(question.kind) else {}
        read_document(json.dumps(empty).encode(), question.kind)
