"""What is kept until a leader has confirmed it, and who is told what."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from leveret.core.queues.head import Head, make_head
from leveret.core.queues.messages import alike
from leveret.session.forwarding.unconfirmed import Unconfirmed
from leveret.wire.record import content_header

HEADS = [make_head(b"", b"k", content_header(b"\0\0", size)) for size in (1, 3)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 6), st.booleans()),
            st.tuples(st.just("wait"), st.integers(1, 6), st.booleans()),
            st.tuples(st.just("decide"), st.integers(1, 6), st.booleans()),
            st.tuples(st.sampled_from(["settle", "drop", "keep"]), st.integers(1, 9), st.booleans()),
            st.tuples(st.just("doubt"), st.integers(1, 6), st.booleans()),
        ),
        max_size=60,
    )
)
@example([("add", 2, False), ("decide", 2, False), ("doubt", 2, False), ("settle", 2, True)])
def test_each_is_told_of_what_it_waits_for_when_that_is_known(steps: list[tuple[str, int, bool]]) -> None:
    kept = Unconfirmed()
    # True, False for good, "" for good because its queue has it, or None for a refusal after which the message is
    # published again.
    outcomes: list[bool | str | None] = []
    deciding: list[tuple[int, int, bool, list[list[tuple[int, int]]]]] = []
    doubted = 0
    expected: list[tuple[Head, int]] = []
    waiting: list[tuple[int, int, list[bool]]] = []
    for what, count, flag in steps:
        match what:
            case "add":
                head = HEADS[flag]
                kept.add(alike(head, [b"x" * head.body_bytes] * count))
                expected += [(head, kept.last - count + 1 + each) for each in range(count)]
            case "wait" if kept.last > kept.known:
                number = min(kept.last, kept.known + count)
                told: list[bool] = []
                kept.when_known(told.append, number, alone=flag)
                waiting.append((number - 1 if flag else kept.known, number, told))
            case "decide" if kept.last > kept.known:
                number = min(kept.last, kept.known + count)
                since = number - 1 if flag else kept.known
                again: list[list[tuple[int, int]]] = []
                until_taken = count % 2 == 0
                kept.when_decided(again.append, since, number, until_taken=until_taken)
                deciding.append((since, number, until_taken, again))
            case "doubt":
                doubted = max(doubted, min(kept.last, kept.known + count))
                kept.doubt(doubted)
            case "settle" | "drop" | "keep":
                before, number = kept.known, min(kept.last, kept.known + count)
                refusal = {"settle": None, "drop": False, "keep": ""}[what]
                outcomes += [each > doubted if flag else refusal for each in range(before + 1, number + 1)]
                for call in kept.settle(
                    before + count, ok=flag, is_final=what != "settle", is_kept=what == "keep"
                ):
                    call()
        assert len(outcomes) == kept.known
        for since, number, told in waiting:
            assert told == ([all(outcomes[since:number])] if number <= kept.known else [])
        for since, number, until_taken, again in deciding:
            assert len(again) == (number <= kept.known)
            told_again = {
                each for ranges in again for first, last in ranges for each in range(first + 1, last + 1)
            }
            assert told_again == {
                each
                for each in range(since + 1, number + 1)
                if again and (outcomes[each - 1] is None or (until_taken and outcomes[each - 1] is False))
            }
        left = [(head, number) for head, number in expected if number > kept.known]
        assert [each.head for each in kept.runs() for _ in each.bodies] == [head for head, _ in left]
        assert kept.size_bytes == sum(head.body_bytes for head, _ in left)
        assert len(kept) == len(left)
