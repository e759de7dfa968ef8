"""What is kept for queues of other leaders until they confirm it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.queues.head import make_head
from leveret.core.queues.messages import alike
from leveret.core.queues.queue_settings import REJECT_PUBLISH_DLX, QueueSettings
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.model import definitions as d
from leveret.session.forwarding import publication as module
from leveret.session.forwarding.publication import Publication, RetransmitBuffer
from leveret.wire.record import content_header

HEAD = make_head(b"", b"q", content_header(b"\x10\x00\x02", 10))


def made(kept: RetransmitBuffer, name: str = "q") -> Publication:
    return Publication(RemoteQueue(d.Queue(vhost="/", name=name), "b"), kept, lambda: None)


def publish(publication: Publication, count: int) -> None:
    publication.queue.gathered.add(alike(HEAD, [b"0123456789"] * count))
    publication.publish()


@pytest.mark.parametrize("policy", [None, "before", "meanwhile"])
def test_what_a_lost_leader_may_have_rejected_is_not_confirmed_whatever_policy_comes_next(
    policy: str | None,
) -> None:
    publication = made(RetransmitBuffer())
    if policy == "before":
        publication.queue.configure(QueueSettings(overflow=REJECT_PUBLISH_DLX))
    publish(publication, 3)
    if policy == "meanwhile":
        publication.queue.configure(QueueSettings(overflow=REJECT_PUBLISH_DLX))
        publish(publication, 1)
    outcomes: list[bool] = []
    publication.unconfirmed.when_known(outcomes.append, 3, alone=False)
    # The link ends before the leader says which it has rejected; the next one confirms all that it knows.
    publication.queue.configure(QueueSettings())
    publication.is_at(3)
    publication.decided(3, ok=True)
    assert outcomes == [policy is None]
    publication.decided(publication.unconfirmed.last, ok=True)
    publish(publication, 1)
    publication.is_at(publication.unconfirmed.last)
    assert len(publication.unconfirmed) == 1, "that leader never rejects"


STEP = st.tuples(st.integers(0, 2), st.sampled_from(["publish", "settle", "refuse", "down", "up"]))


@settings(max_examples=50)
@given(st.lists(STEP, max_size=40))
def test_the_sums_of_what_is_kept_are_those_of_all_queues(steps: list[tuple[int, str]]) -> None:
    kept = RetransmitBuffer()
    publications, down = [made(kept, f"q{number}") for number in range(3)], set[int]()
    for number, what in steps:
        each = publications[number]
        match what:
            case "publish":
                publish(each, 2)
            case "settle":
                each.decided(each.unconfirmed.known + 1, ok=True)
            case "refuse":
                each.refuse_all()
            case _:
                kept.is_for(each, down=what == "down")
                (down.add if what == "down" else down.discard)(number)
    assert kept.size_bytes == sum(each.unconfirmed.size_bytes for each in publications)
    up = [each for number, each in enumerate(publications) if number not in down]
    assert kept.expected_bytes == sum(each.unconfirmed.size_bytes for each in up)


def test_messages_for_queues_that_are_down_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DOWN_BYTES_MAX", 4 * (10 + module.MESSAGE_BYTES))
    kept = RetransmitBuffer()
    one, other = made(kept, "q1"), made(kept, "q2")
    publish(one, 3)
    kept.is_for(one, down=True)
    publish(one, 1)
    publish(other, 1)
    fullness = [kept.is_full]
    kept.is_for(other, down=True)
    fullness.append(kept.is_full)
    one.decided(1, ok=True)
    fullness.append(kept.is_full)
    assert fullness == [False, True, False]
