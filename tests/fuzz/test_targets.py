"""Mutations of lawful inputs, and the tools that make and shorten them."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.catalogue import TARGETS
from tests.fuzz.minimise import failure, minimised
from tests.fuzz.mutations import mutated
from tests.fuzz.target import Target, expect

# pamqp warns of methods that AMQP 0-9-1 has given up; peers may send them all the same.
pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")


@cache
def seeds_of(name: str) -> list[bytes]:
    return list(TARGETS[name].seeds())


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", TARGETS)
@given(random=st.randoms(use_true_random=False))
def test_a_mutated_input_is_taken_or_refused_as_declared(name: str, random: Random) -> None:
    target = TARGETS[name]
    target.run(mutated(random, seeds_of(name), target.bytes_max))


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", TARGETS)
@given(octets=st.binary(max_size=200))
def test_any_octets_are_taken_or_refused_as_declared(name: str, octets: bytes) -> None:
    TARGETS[name].run(octets)


def test_the_same_chance_makes_the_same_mutation() -> None:
    seeds = seeds_of("records")
    assert mutated(Random(7), seeds, 100) == mutated(Random(7), seeds, 100)
    assert len({mutated(Random(seed), seeds, 100) for seed in range(50)}) > 25
    assert all(len(mutated(Random(seed), seeds, 100)) <= 100 for seed in range(50))


def test_an_input_is_shortened_to_what_makes_it_fail() -> None:
    def run(octets: bytes) -> None:
        expect(b"b" not in octets or b"d" not in octets, "both")

    target = Target("letters", run, lambda: [])
    assert minimised(target, b"aaaabccccdeeee") == b"bd"
    assert failure(target, b"b") is None
