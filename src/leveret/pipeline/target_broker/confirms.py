"""The confirmed messages of one channel, for confirms in any order.

A broker may confirm one message or all up to one, ack or nack, in any order: RabbitMQ acks message 5 alone, if its
queue was fast, and then all up to 4. So the confirmed numbers are a set, and its contiguous begin counts.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class UnconfirmedTags(Generic[T]):
    """The messages from the first unconfirmed one on, each with a note of its publisher.

    Delivery tags count the messages from 1 on. The broker's first answer for a message counts: a later multiple does
    not include messages that were answered before.
    """

    def __init__(self) -> None:
        """Begin without messages."""
        self._notes: deque[T] = deque()
        self._first = 1
        self._acked: set[int] = set()
        self._nacked: set[int] = set()

    def __len__(self) -> int:
        """The number of these messages, also confirmed ones behind the first."""
        return len(self._notes)

    @property
    def first(self) -> T:
        """The note of the first message; an IndexError if all are confirmed."""
        return self._notes[0]

    @property
    def declined(self) -> bool:
        """Whether the broker refused one of them; it stays here, and so do all behind it."""
        return bool(self._nacked)

    def sent(self, note: T) -> None:
        """Note one more sent message."""
        self._notes.append(note)

    def settle(self, tag: int, *, multiple: bool, taken: bool) -> None:
        """Take the broker's answer for message `tag`, or for all up to it; `multiple` with tag 0 means all."""
        end = self._first + len(self._notes)
        until = end if multiple and not tag else min(tag + 1, end)
        begin = self._first if multiple else max(tag, self._first)
        settled, otherwise = (self._acked, self._nacked) if taken else (self._nacked, self._acked)
        settled.update(each for each in range(begin, until) if each not in otherwise)
        while self._first in self._acked:
            self._acked.remove(self._first)
            self._notes.popleft()
            self._first += 1
