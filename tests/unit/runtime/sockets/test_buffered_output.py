"""Output that waits for the disk: each part for its own promise, and nothing overtakes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.runtime.sockets.buffered_output import BufferedOutput


def test_a_later_hold_is_not_released_by_an_earlier_promise() -> None:
    held = BufferedOutput()
    held.add(1, [b"first"])
    held.add(0, [b" after"])
    held.add(2, [b"second"])
    held.add(0, [b" behind"])
    assert b"".join(held.release(1)) == b"first after"
    assert held
    assert held.size_bytes == len(b"second behind")
    assert b"".join(held.release(1)) == b""
    assert b"".join(held.release(2)) == b"second behind"
    assert not held


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=3))), st.data())
def test_octets_leave_in_their_order_and_never_before_their_promise(
    parts: list[tuple[bool, bytes]], data: st.DataObject
) -> None:
    held = BufferedOutput()
    expected: list[tuple[int, bytes]] = []
    for number, (waits, octets) in enumerate(parts, 1):
        held.add(number if waits else 0, [octets])
        expected.append((number if waits else 0, octets))
    left = b""
    for hold in sorted(data.draw(st.lists(st.integers(0, len(parts) + 1)))):
        left += b"".join(held.release(hold))
        free = next((at for at, (gate, _) in enumerate(expected) if gate > hold), len(expected))
        assert left == b"".join(octets for _, octets in expected[:free])
    assert held.size_bytes == sum(len(octets) for _, octets in expected) - len(left)
