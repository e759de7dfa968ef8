"""What is fuzzed: a named door for octets, whole inputs to begin with, and when one has been let down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from leveret.model.errors import LeveretError

CUT: Final = b"\xce"
"""Divides an input into parts. A part that is made longer or shorter leaves the others what they were."""


class Finding(AssertionError):
    """A door did not keep what it promises; the text says what."""


@dataclass(frozen=True, slots=True)
class Target:
    """One door.

    Attributes:
        name: of its directory in the corpus.
        run: takes any octets; whatever it raises is a finding.
        seeds: whole, lawful inputs, from which mutations start.
        bytes_max: how long a mutated input may become.
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    bytes_max: int = 4096


@contextmanager
def declared(*errors: type[Exception]) -> Iterator[None]:
    """Let pass what a decoder says that it raises; by default any error of ours, which none may go beyond."""
    with suppress(*(errors or (LeveretError,))):
        yield


def expect(holds: bool, what: str) -> None:
    """A finding unless it holds."""
    if not holds:
        raise Finding(what)
