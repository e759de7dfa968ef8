"""The shortest part of a conversation in which the brokers still differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def shortest(numbers: Sequence[int], differs: Callable[[Sequence[int]], bool]) -> list[int]:
    """Drop numbers of steps, many at a time and then fewer, while the rest still differs."""
    left = list(numbers)
    size = max(1, len(left) // 2)
    while True:
        start, dropped = 0, False
        while start < len(left):
            rest = left[:start] + left[start + size :]
            if rest and differs(rest):
                left, dropped = rest, True
            else:
                start += size
        if size == 1 and not dropped:
            return left
        size = max(1, size // 2) if not dropped or size > 1 else 1
