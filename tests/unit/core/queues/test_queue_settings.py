"""core.queues.queue_settings: what counts where an argument and the policies differ."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.queues.queue_settings import QueueSettings, queue_settings


def settings(kind: str, argument: Any, policy: Any, key: str) -> QueueSettings:
    arguments = {"x-queue-type": kind} | ({} if argument is None else {f"x-{key}": argument})
    return queue_settings(arguments, {} if policy is None else {key: policy})


def test_without_arguments_and_policies_there_are_no_limits() -> None:
    assert queue_settings({}, {}) == QueueSettings()


@pytest.mark.parametrize(
    ("key", "field", "value", "expected"),
    [
        ("message-ttl", "message_ttl_ms", 0, 0),
        ("expires", "expires_ms", 5, 5),
        ("max-length", "max_length", 0, 0),
        ("max-length-bytes", "max_length_bytes", 5, 5),
        ("overflow", "overflow", "reject-publish", "reject-publish"),
        ("dead-letter-exchange", "dead_letter_exchange", "", ""),
        ("dead-letter-routing-key", "dead_letter_routing_key", "k", "k"),
        ("delivery-limit", "delivery_limit", 0, 0),
        ("consumer-timeout", "consumer_timeout_ms", 0, 0),
        ("max-age", "max_age_ms", "2h", 7_200_000),
        ("stream-max-segment-size-bytes", "segment_bytes_max", 5, 5),
    ],
)
def test_a_setting_comes_from_an_argument_or_a_policy(
    key: str, field: str, value: Any, expected: Any
) -> None:
    for argument, policy in ((value, None), (None, value)):
        assert getattr(settings("classic", argument, policy, key), field) == expected


@pytest.mark.parametrize(
    ("kind", "key", "field", "argument", "policy", "effective"),
    [
        ("classic", "max-length", "max_length", 5, 3, 3),
        ("classic", "max-length", "max_length", 3, 5, 3),
        ("classic", "expires", "expires_ms", 3, 5, 3),
        ("classic", "overflow", "overflow", "drop-head", "reject-publish", "drop-head"),
        ("classic", "dead-letter-exchange", "dead_letter_exchange", "own", "policy", "own"),
        ("quorum", "max-length", "max_length", 3, 5, 3),
        ("quorum", "delivery-limit", "delivery_limit", 3, 5, 3),
        ("quorum", "expires", "expires_ms", 3, 5, 5),
        ("quorum", "overflow", "overflow", "drop-head", "reject-publish", "reject-publish"),
        ("quorum", "overflow", "overflow", "reject-publish-dlx", None, "drop-head"),
        ("quorum", "overflow", "overflow", "reject-publish", "reject-publish-dlx", "drop-head"),
        ("quorum", "dead-letter-exchange", "dead_letter_exchange", "own", "policy", "own"),
        ("stream", "max-length-bytes", "max_length_bytes", 3, 5, 5),
        ("stream", "consumer-timeout", "consumer_timeout_ms", 3, 5, 3),
        ("classic", "consumer-timeout", "consumer_timeout_ms", {}, 5, 5),
        ("stream", "max-age", "max_age_ms", "1s", "1m", 60_000),
    ],
)
def test_where_both_say_something_the_queues_type_decides(
    kind: str, key: str, field: str, argument: Any, policy: Any, effective: Any
) -> None:
    assert getattr(settings(kind, argument, policy, key), field) == effective


def test_a_negative_delivery_limit_is_none() -> None:
    assert settings("quorum", -1, None, "delivery-limit").delivery_limit is None
