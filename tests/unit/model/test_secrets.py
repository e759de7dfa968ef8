"""model.secrets: what is secret is not shown, and comes back to where it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.secrets import MASK, Masked, masked, unmasked

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"password": SECRET, "username": "u"}, {"password": MASK, "username": "u"}),
        ({"deep": [{"Secret-Access-Key": SECRET}]}, {"deep": [{"Secret-Access-Key": MASK}]}),
        (
            {"aws_access_key_id": SECRET, "accountKey": SECRET, "fs.azure.sas.c": SECRET, "disaster": "seen"},
            {"aws_access_key_id": MASK, "accountKey": MASK, "fs.azure.sas.c": MASK, "disaster": "seen"},
        ),
        ({"auth_token": SECRET, "passphrase": SECRET}, {"auth_token": MASK, "passphrase": MASK}),
        (f"amqp://u:{SECRET}@h:5672/v", f"amqp://u:{MASK}@h:5672/v"),
        ([f"https://u:{SECRET}@h"], [f"https://u:{MASK}@h"]),
        (f"amqp://:{SECRET}@h", f"amqp://:{MASK}@h"),
        (f"s3://AKIA:{SECRET}/a@b@bucket", f"s3://AKIA:{MASK}@bucket"),
        (f"see https://s/c?sv=1&sig={SECRET}&x=2", f"see https://s/c?sv=1&sig={MASK}&x=2"),
        ({"uri": f"amqp://u:{SECRET}@h"}, {"uri": f"amqp://u:{MASK}@h"}),
    ],
)
def test_secrets_are_left_out(value: Any, shown: Any) -> None:
    assert masked(value) == shown
    assert SECRET not in json.dumps(masked(value))
    assert unmasked(shown, value) == value


@pytest.mark.parametrize(
    "value",
    [
        "a.example:5672",
        "amqp://u@h:5672/v",
        "https://h:15671/api?user=a@b",
        {"password": "", "token": None, "secret": 5},
        {"max-queues": 5, "passive": "yes"},
        "2026-11-23T01:02:03@utc",
        None,
        5,
        True,
    ],
)
def test_what_is_not_secret_is_shown(value: Any) -> None:
    assert masked(value) == value
    assert unmasked(value, None) == value


def test_what_was_changed_beside_a_mask_is_taken() -> None:
    existing = {"endpoints": ["a:1"], "username": "u", "password": SECRET}
    wanted = {"endpoints": ["b:2", "a:1"], "username": "v", "password": MASK}
    assert unmasked(wanted, existing) == {**wanted, "password": SECRET}


def test_items_may_move_and_keep_their_secrets() -> None:
    existing = ["amqp://a:one@a", "amqp://b:two@b"]
    assert unmasked([f"amqp://b:{MASK}@b", "amqp://c", f"amqp://a:{MASK}@a"], existing) == [
        existing[1],
        "amqp://c",
        existing[0],
    ]


@pytest.mark.parametrize(
    ("value", "existing"),
    [
        ({"password": MASK}, None),
        ({"password": MASK}, {"username": "u"}),
        ({"password": MASK}, {"password": ""}),
        (f"amqp://u:{MASK}@other", f"amqp://u:{SECRET}@h"),
        ([f"amqp://u:{MASK}@h"], []),
        (MASK, None),
    ],
)
def test_a_mask_for_what_nobody_knows_is_refused(value: Any, existing: Any) -> None:
    with pytest.raises(Masked):
        unmasked(value, existing)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 4_000_000,
        "a://b:" * 500_000,
        "a://b:1/" * 500_000,
        "@" * 2_000_000 + "a://b:",
        "?token=" * 500_000,
    ],
    ids=["a word", "beginnings of URIs", "ports", "ends of users", "queries"],
)
def test_a_text_as_long_as_a_request_takes_no_time_that_grows_with_its_square(text: str) -> None:
    """It would be hours, in which the node does nothing else."""
    assert len(masked({"value": text})["value"]) <= len(text)


def test_a_long_list_of_items_that_moved_is_looked_through_once() -> None:
    existing = [f"amqp://u:{number}@h{number}" for number in range(10_000)]
    assert unmasked([masked(each) for each in reversed(existing)] + ["amqp://c"], existing) == [
        *reversed(existing),
        "amqp://c",
    ]


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
KEYS = st.sampled_from(["password", "uri", "name", "a"])
URIS = st.builds(lambda user, password: f"amqp://{user}:{password}@host", TEXT, TEXT)
VALUES = st.recursive(
    st.none() | st.integers() | TEXT | URIS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_what_was_masked_comes_back_as_it_was(value: Any) -> None:
    assert unmasked(masked(value), value) == value
    assert masked(masked(value)) == masked(value)


@given(VALUES, st.text(st.sampled_from("abcXYZ019/%+"), min_size=6).map("p{}".format))
def test_no_password_of_a_uri_is_shown_wherever_it_stands(value: Any, password: str) -> None:
    shown = json.dumps(masked([value, {"a": f"amqp://user:{password}!@host"}, {"password": f"{password}!"}]))
    assert f"{password}!" not in shown
