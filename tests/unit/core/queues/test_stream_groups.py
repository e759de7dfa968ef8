from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.stream_groups import ConsumerGroup, ConsumerGroups


class Subscriber:
    """A member that notes what it is told, and steps down when it is asked to unless it is slow."""

    def __init__(self, group: ConsumerGroup | None = None, *, slow: bool = False) -> None:
        self.heard: list[bool] = []
        self.group = group
        self.slow = slow

    def activate(self, active: bool) -> None:
        self.heard.append(active)
        if not active and not self.slow and self.group is not None:
            self.group.stepped_down(self)

    def end(self) -> None:
        raise AssertionError

    @property
    def reads(self) -> bool:
        return bool(self.heard) and self.heard[-1]


def test_the_first_reads_and_when_it_goes_the_next_does() -> None:
    group = ConsumerGroup()
    first, second, third = Subscriber(), Subscriber(), Subscriber()
    for member in (first, second, third):
        group.join(member)
    assert (first.heard, second.heard, third.heard) == ([True], [], [])
    group.leave(second)
    group.leave(first)
    assert (second.heard, third.heard) == ([], [True])


def test_on_a_partition_the_turn_goes_by_its_number() -> None:
    group = ConsumerGroup(partition=1)
    first, second = Subscriber(group), Subscriber(group)
    group.join(first)
    assert first.heard == [True]
    group.join(second)
    assert (first.heard, second.heard) == ([True, False], [True])
    group.leave(second)
    assert first.heard == [True, False, True]


def test_nobody_reads_until_the_one_that_did_has_stopped() -> None:
    group = ConsumerGroup(partition=1)
    first, second = Subscriber(group, slow=True), Subscriber(group)
    group.join(first)
    group.join(second)
    assert (first.heard, second.heard) == ([True, False], [])
    group.stepped_down(first)
    assert second.heard == [True]


def test_one_that_goes_instead_of_stopping_lets_the_next_read() -> None:
    group = ConsumerGroup(partition=1)
    first, second = Subscriber(group, slow=True), Subscriber(group)
    group.join(first)
    group.join(second)
    group.leave(first)
    assert second.heard == [True]


def test_groups_are_apart_and_end_with_their_last_member() -> None:
    groups = ConsumerGroups()
    one, other = Subscriber(), Subscriber()
    groups.join(("/", "s", "a"), one, None)
    groups.join(("/", "s", "b"), other, None)
    assert (one.reads, other.reads) == (True, True)
    groups.leave(("/", "s", "a"), one)
    late = Subscriber()
    groups.join(("/", "s", "a"), late, None)
    assert late.reads
    groups.leave(("/", "s", "missing"), late)
    groups.stepped_down(("/", "s", "missing"), late)


@given(
    st.none() | st.integers(0, 5),
    st.lists(st.tuples(st.sampled_from(["join", "leave", "answer"]), st.integers(0, 20)), max_size=40),
)
def test_never_do_two_read_and_somebody_does_in_the_end(
    partition: int | None, steps: list[tuple[str, int]]
) -> None:
    group = ConsumerGroup(partition)
    members: list[Subscriber] = []
    reading: set[Subscriber] = set()
    for step, number in steps:
        if step == "join":
            members.append(Subscriber(group, slow=True))
            group.join(members[-1])
        elif members:
            member = members[number % len(members)]
            if step == "leave":
                members.remove(member)
                group.leave(member)
            else:
                group.stepped_down(member)
        # A member reads until it has left, or answered that it stopped.
        reading = {each for each in members if each.reads}
        assert len(reading) <= 1
    for _ in range(2):
        for member in list(members):
            group.stepped_down(member)
    if members:
        assert [each for each in members if each.reads] == [group.active]
