"""core.rules.queue_arguments: what arguments may say; the texts were seen on RabbitMQ (tests/conformance)."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.rules.queue_arguments import (
    ARGUMENTS,
    check_consumer_arguments,
    check_queue_arguments,
    with_default_type,
)
from leveret.model.definitions import Queue
from leveret.model.errors import PreconditionFailed

GOOD: dict[str, Any] = {
    "x-expires": 315_360_000_000,
    "x-message-ttl": 0,
    "x-dead-letter-exchange": "",
    "x-dead-letter-strategy": "at-least-once",
    "x-max-length": 0,
    "x-max-length-bytes": 2**62,
    "x-max-in-memory-length": 0,
    "x-max-in-memory-bytes": 1,
    "x-max-priority": 255,
    "x-overflow": "reject-publish-dlx",
    "x-queue-mode": "lazy",
    "x-queue-version": 2,
    "x-single-active-consumer": False,
    "x-quorum-initial-group-size": 1,
    "x-max-age": "1Y",
    "x-stream-max-segment-size-bytes": 3_000_000_000,
    "x-initial-cluster-size": 1,
    "x-queue-leader-locator": "client-local",
    "x-queue-master-locator": "min-masters",
    "x-delivery-limit": -1,
}


def queue(arguments: dict[str, Any], **more: Any) -> Queue:
    return Queue(name="q", vhost="v", arguments=arguments, **more)


def refusal(arguments: dict[str, Any], *, exclusive: bool = False, **more: Any) -> str:
    with pytest.raises(PreconditionFailed) as caught:
        check_queue_arguments(queue(arguments, **more), exclusive=exclusive)
    return str(caught.value)


def of(kind: str, **arguments: Any) -> dict[str, Any]:
    return {"x-queue-type": kind} | {
        f"x-{name.replace('_', '-')}": value for name, value in arguments.items()
    }


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
@pytest.mark.parametrize("name", GOOD)
def test_an_argument_passes_for_the_types_that_know_it(kind: str, name: str) -> None:
    arguments = {"x-queue-type": kind, name: GOOD[name]}
    if name in ARGUMENTS[kind]:
        check_queue_arguments(queue(arguments), exclusive=False)
    else:
        assert refusal(arguments) == (
            f"invalid arg '{name}' for queue 'q' in vhost 'v' of queue type rabbit_{kind}_queue"
        )


def test_an_argument_that_no_type_knows_passes() -> None:
    for name in ("x-something", "x-consumer-timeout", "x-cancel-on-ha-failover"):
        check_queue_arguments(queue({name: ["any"]}), exclusive=True)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (of("classic", expires=0), "{value_zero,0}"),
        (of("classic", expires=-1), "{value_negative,-1}"),
        (of("classic", message_ttl=315_360_000_001), "{value_too_large,315360000001}"),
        (of("classic", message_ttl="5"), '"expected integer, got longstr"'),
        (of("classic", max_length=True), '"expected integer, got bool"'),
        (of("classic", max_length=None), '"expected integer, got void"'),
        (of("classic", max_length=[1]), '"expected integer, got array"'),
        (of("classic", max_length={}), '"expected integer, got table"'),
        (of("classic", max_length=1.5), '"expected integer, got double"'),
        (of("classic", max_priority=256), "{max_value_exceeded,256}"),
        (of("classic", overflow="x"), "invalid_overflow"),
        (of("classic", overflow=2**31), "{unacceptable_type,long}"),
        (of("classic", queue_mode="x"), "\"unsupported queue mode 'x'\""),
        (of("classic", queue_mode=1), "{unacceptable_type,signedint}"),
        (of("classic", queue_version=3), "\"unsupported queue version '3'\""),
        (of("classic", single_active_consumer=1), "{unacceptable_type,signedint}"),
        (of("classic", dead_letter_routing_key="k"), "routing_key_but_no_dlx_defined"),
        (of("classic", queue_master_locator="x"), "invalid_queue_locator_arg"),
        (of("quorum", dead_letter_strategy="x"), "invalid_dlx_strategy"),
        (of("quorum", quorum_initial_group_size=0), "{value_zero,0}"),
        (of("quorum", queue_leader_locator="x"), "invalid_queue_locator_arg"),
        (of("quorum", delivery_limit="a"), '"expected integer, got longstr"'),
        (of("stream", max_age="7x"), "invalid_max_age"),
        (of("stream", max_age="9" * 5000 + "Y"), "invalid_max_age"),
        (of("stream", max_age=7), "{unacceptable_type,signedint}"),
        (of("stream", stream_max_segment_size_bytes=-1), "{value_negative,-1}"),
        (of("bogus"), "\"unsupported queue type 'bogus'\""),
        ({"x-queue-type": 5}, "{unacceptable_type,signedint}"),
    ],
)
def test_a_value_that_will_not_do_is_refused_in_rabbitmqs_words(arguments: dict[str, Any], what: str) -> None:
    name = list(arguments)[-1]
    assert refusal(arguments) == f"invalid arg '{name}' for queue 'q' in vhost 'v': {what}"


def test_a_dead_letter_exchange_is_a_name() -> None:
    text = "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost 'v'"
    assert refusal({"x-dead-letter-exchange": 5, "x-queue-type": "bogus"}) == text


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_replicated_types_are_durable_shared_and_stay(kind: str) -> None:
    end = "for queue 'q' in vhost 'v'"
    everything = {"auto_delete": True, "durable": False, "exclusive": True}
    assert refusal(of(kind), **everything) == f"invalid property 'auto-delete' {end}"
    assert refusal(of(kind), durable=False, exclusive=True) == f"invalid property 'exclusive-owner' {end}"
    assert refusal(of(kind), durable=False) == f"invalid property 'non-durable' {end}"
    check_queue_arguments(queue(of("classic"), durable=False, auto_delete=True), exclusive=True)


def test_a_stream_has_bounds_for_its_segments_and_filters() -> None:
    too_large = of("stream", stream_max_segment_size_bytes=3_000_000_001)
    assert refusal(too_large) == "Exceeded max value for x-stream-max-segment-size-bytes"
    for size in (15, 256, "a"):
        text = "Invalid value for  x-stream-filter-size-bytes"
        assert refusal(of("stream", stream_filter_size_bytes=size)) == text
    check_queue_arguments(queue(of("stream", stream_filter_size_bytes=255)), exclusive=False)


def test_the_vhosts_default_type_completes_a_declaration() -> None:
    asked = queue({"x-max-length": 5})
    assert with_default_type(asked, "classic", exclusive=False) is asked
    completed = with_default_type(asked, "quorum", exclusive=False)
    assert completed.arguments == {"x-max-length": 5, "x-queue-type": "quorum"}
    own = queue(of("stream"))
    assert with_default_type(own, "quorum", exclusive=False) is own


@pytest.mark.parametrize("more", [{"durable": False}, {"auto_delete": True}, {"exclusive": True}])
def test_what_cannot_be_of_the_default_type_stays_classic(more: dict[str, bool]) -> None:
    exclusive = more.pop("exclusive", False)
    completed = with_default_type(queue({}, **more), "quorum", exclusive=exclusive)
    assert completed.arguments == {"x-queue-type": "classic"}


@pytest.mark.parametrize(
    ("kind", "arguments", "wrong"),
    [
        ("classic", {"x-priority": "a"}, "invalid arg 'x-priority' for queue 'q' in vhost 'v': \"expected"),
        ("classic", {"x-stream-offset": 0}, "of queue type rabbit_classic_queue"),
        ("stream", {"x-priority": 0}, "of queue type rabbit_stream_queue"),
    ],
)
def test_a_consumer_asks_only_for_what_the_queues_type_has(
    kind: str, arguments: dict[str, Any], wrong: str
) -> None:
    check_consumer_arguments(queue(of(kind)), {"x-other": 1})
    with pytest.raises(PreconditionFailed, match=wrong):
        check_consumer_arguments(queue(of(kind)), arguments)
