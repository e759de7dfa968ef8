"""core.replication.in_sync: which followers a promise waits for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.replication import in_sync as in_sync_module
from leveret.core.replication.in_sync import InSync
from leveret.model.errors import PeerError

NAMES = "abc"
TIMEOUT_MS = 10


@dataclass
class Follower:
    """What a follower really has: `held` is on its disk, `link` is when it is live."""

    held: int = 0
    joined: int | None = None
    acked: int = -1
    in_sync_from_ms: int = 0

    @property
    def holds_back(self) -> bool:
        return self.joined is not None and self.acked >= self.joined


@dataclass
class World:
    """A leader, its followers and the record, by the rules and without any economy."""

    sync: InSync
    min_in_sync: int = 0
    records: bool = False
    now_ms: int = 0
    end: int = 0
    committed: int = 0
    confirmable: int = 0
    frames: list[tuple[int, int]] = field(default_factory=list)
    followers: dict[str, Follower] = field(default_factory=lambda: {name: Follower() for name in NAMES})
    record: frozenset[str] = frozenset()
    """What an election would find now."""
    in_flight: frozenset[str] | None = None
    is_made: bool = False
    """The write in flight has been made, and the leader has not heard of it."""
    strays: list[frozenset[str]] = field(default_factory=list)
    """Writes that the leader gave up, and that may still arrive: on condition that no other was made since."""

    def ship(self, count: int) -> None:
        self.end += count
        if count:
            self.frames.append((self.end, self.now_ms))
        self.sync.shipped(self.end, self.now_ms)

    def join(self, name: str, behind: int) -> None:
        follower = self.followers[name]
        follower.joined = max(0, self.end - behind)
        follower.acked = -1
        self.sync.joined(name, follower.joined, self.now_ms)

    def ack(self, name: str, position: int) -> None:
        follower = self.followers[name]
        position = min(position, self.end if follower.joined is None else max(self.end, follower.joined))
        self.sync.acked(name, position, self.now_ms)
        if follower.joined is not None:
            if not follower.holds_back:
                follower.in_sync_from_ms = self.now_ms
            follower.acked = max(follower.acked, position)
            if follower.holds_back:
                follower.held = max(follower.held, follower.acked)

    def leave(self, name: str) -> None:
        self.followers[name].joined = None
        self.sync.left(name)

    def tick(self) -> None:
        late = [
            name
            for name, follower in self.followers.items()
            if follower.holds_back
            and self.now_ms - follower.in_sync_from_ms >= TIMEOUT_MS
            and any(
                position > follower.acked and self.now_ms - at_ms >= TIMEOUT_MS
                for position, at_ms in self.frames
            )
        ]
        assert sorted(self.sync.tick(self.now_ms)) == late
        for name in late:
            self.followers[name].joined = None

    def write(self) -> None:
        wanted = self.sync.wanted
        if wanted is not None and self.in_flight is None:
            self.sync.writing(wanted)
            self.in_flight = wanted

    def make(self) -> None:
        """The write in flight arrives; whatever else was on the way is too late now."""
        if self.in_flight is not None and not self.is_made:
            self.record, self.is_made = self.in_flight, True
            self.strays.clear()

    def make_stray(self) -> None:
        """A write that was given up arrives before the one in flight, which is refused for that."""
        if self.strays:
            self.record = self.strays[0]
            self.strays.clear()
            self.in_flight = None

    def hear(self) -> None:
        """The leader is told that the write was made."""
        if self.in_flight is not None and self.is_made:
            self.sync.written(self.in_flight)
            self.in_flight, self.is_made = None, False

    def lose(self) -> None:
        """The answer to the write in flight does not come, whether it was made or not."""
        if self.in_flight is not None and not self.is_made:
            self.strays.append(self.in_flight)
        self.in_flight, self.is_made = None, False

    def check(self) -> None:
        sync = self.sync
        committed = sync.committed()
        assert self.committed <= committed <= self.end
        assert all(self.followers[name].held >= committed for name in sync.members | self.record)
        holding = [follower.acked for follower in self.followers.values() if follower.holds_back]
        if not self.records:
            # Nothing else is waited for: not one that is catching up, not one that has left.
            assert committed == max(self.committed, min([*holding, self.end]))
        assert sync.members == {
            name
            for name, follower in self.followers.items()
            if follower.holds_back and follower.acked >= committed
        }
        confirmable = sync.confirmable()
        assert self.confirmable <= confirmable <= committed
        if confirmable > self.confirmable:
            able = sync.members & self.record if self.records else sync.members
            assert len(able) >= self.min_in_sync
        if not sync.is_short:
            assert confirmable == committed
        self.committed, self.confirmable = committed, confirmable


def play(data: st.DataObject, world: World, actions: list[str], steps: int = 40) -> None:
    name = st.sampled_from(NAMES)
    for _ in range(data.draw(st.integers(0, steps))):
        match data.draw(st.sampled_from(actions)):
            case "ship":
                world.ship(data.draw(st.integers(0, 3)))
            case "join":
                world.join(data.draw(name), data.draw(st.integers(-2, 3)))
            case "ack":
                world.ack(data.draw(name), max(0, world.end - data.draw(st.integers(0, 4))))
            case "leave":
                world.leave(data.draw(name))
            case "wait":
                world.now_ms += data.draw(st.integers(1, TIMEOUT_MS))
                world.tick()
            case action:
                getattr(world, action)()
        world.check()


LINK = ["ship", "ship", "join", "ack", "ack", "ack", "leave", "wait"]


@given(st.data(), st.integers(0, 2))
def test_what_is_promised_is_held_by_every_member_and_waits_for_nobody_else(
    data: st.DataObject, min_in_sync: int
) -> None:
    sync = InSync(ack_timeout_ms=TIMEOUT_MS, min_in_sync=min_in_sync)
    play(data, World(sync, min_in_sync), LINK)


@given(st.data(), st.integers(0, 2), st.frozensets(st.sampled_from(NAMES)))
def test_what_is_promised_is_held_by_whoever_the_record_names_at_any_moment(
    data: st.DataObject, min_in_sync: int, recorded: frozenset[str]
) -> None:
    sync = InSync(ack_timeout_ms=TIMEOUT_MS, min_in_sync=min_in_sync, records_shrink=True, recorded=recorded)
    world = World(sync, min_in_sync, True, record=recorded)
    play(data, world, [*LINK, "write", "write", "make", "make", "make_stray", "hear", "hear", "lose"], 60)
    # And nothing waits for ever: writes that succeed, acks that come.
    world.lose()
    for _ in range(2):
        for name, follower in world.followers.items():
            if follower.joined is not None:
                world.ack(name, max(world.end, follower.joined))
        world.write()
        world.make()
        world.hear()
        world.check()
    assert sync.wanted is None
    assert sync.recorded == world.record == sync.members
    assert sync.committed() == world.end
    assert sync.is_short == (len(sync.members) < min_in_sync)


def make(**settings: object) -> InSync:
    return InSync(**({"ack_timeout_ms": TIMEOUT_MS, "min_in_sync": 0} | settings))  # type: ignore[arg-type]


def with_member(sync: InSync, name: str = "a", position: int = 0) -> InSync:
    sync.joined(name, position, 0)
    sync.acked(name, position, 0)
    return sync


def test_without_followers_all_that_was_shipped_is_committed() -> None:
    sync = make()
    sync.shipped(7, 0)
    assert (sync.committed(), sync.confirmable(), sync.members) == (7, 7, frozenset())


def test_a_member_is_waited_for_until_it_acks() -> None:
    sync = with_member(make())
    sync.shipped(7, 0)
    sync.acked("a", 5, 1)
    assert (sync.committed(), sync.members) == (5, frozenset("a"))
    sync.acked("a", 7, 1)
    assert sync.committed() == 7


def test_one_that_joins_is_not_waited_for_before_it_has_its_join_position() -> None:
    sync = make()
    sync.shipped(7, 0)
    sync.joined("a", 7, 0)
    sync.shipped(9, 0)
    sync.acked("a", 6, 1)
    assert (sync.committed(), sync.members) == (9, frozenset())


def test_one_that_joins_a_busy_leader_becomes_a_member_in_a_round_trip() -> None:
    sync = make()
    sync.joined("a", 0, 0)
    sync.shipped(9, 0)
    sync.acked("a", 3, 1)
    assert sync.members == frozenset()
    sync.shipped(20, 2)
    assert sync.committed() == 9
    sync.acked("a", 9, 3)
    assert (sync.committed(), sync.members) == (9, frozenset("a"))


def test_of_two_followers_the_slower_one_decides() -> None:
    sync = with_member(with_member(make()), "b")
    sync.shipped(9, 0)
    sync.acked("a", 9, 1)
    sync.acked("b", 4, 1)
    assert sync.committed() == 4
    sync.left("b")
    sync.left("b")
    assert (sync.committed(), sync.members) == (9, frozenset("a"))


def test_one_that_does_not_ack_in_time_is_dropped_and_its_late_acks_count_for_nothing() -> None:
    sync = with_member(make())
    sync.shipped(5, 100)
    assert sync.tick(99 + TIMEOUT_MS) == []
    assert sync.tick(100 + TIMEOUT_MS) == ["a"]
    assert (sync.tick(1000), sync.committed(), sync.members) == ([], 5, frozenset())
    sync.acked("a", 5, 200)
    assert sync.members == frozenset()


def test_one_that_acks_all_the_time_but_falls_behind_is_dropped() -> None:
    sync = with_member(make())
    dropped_at = 0
    for now_ms in range(1, 100):
        sync.shipped(now_ms * 10, now_ms)
        sync.acked("a", now_ms * 5, now_ms)
        if sync.tick(now_ms):
            dropped_at = now_ms
            break
    assert dropped_at == 2 * TIMEOUT_MS + 1


def test_one_that_owes_nothing_may_be_silent_as_long_as_it_likes() -> None:
    sync = with_member(make())
    sync.shipped(5, 0)
    sync.acked("a", 5, 1)
    assert sync.tick(1_000_000) == []
    sync.shipped(6, 1_000_000)
    assert sync.tick(1_000_001) == []


def test_a_long_first_write_does_not_end_a_join_and_the_time_runs_from_there() -> None:
    sync = make()
    sync.joined("a", 0, 0)
    sync.shipped(5, 0)
    assert sync.tick(100) == []
    sync.acked("a", 0, 100)
    assert sync.tick(99 + TIMEOUT_MS) == []
    assert sync.tick(100 + TIMEOUT_MS) == ["a"]


def test_an_ack_of_what_was_not_shipped_is_the_peers_error() -> None:
    sync = with_member(make())
    sync.shipped(5, 0)
    with pytest.raises(PeerError, match="follower a acks position 6, but the last one shipped is 5"):
        sync.acked("a", 6, 0)
    assert sync.committed() == 0


def test_positions_do_not_fall() -> None:
    sync = make()
    sync.shipped(5, 0)
    with pytest.raises(ValueError, match="before 5"):
        sync.shipped(4, 0)


def test_below_the_minimum_the_confirmable_end_rests_until_a_new_member_has_it_all() -> None:
    sync = with_member(make(min_in_sync=1))
    sync.shipped(5, 0)
    sync.acked("a", 3, 1)
    sync.left("a")
    assert (sync.is_short, sync.committed(), sync.confirmable()) == (True, 5, 3)
    sync.joined("b", 4, 2)
    sync.acked("b", 4, 2)
    assert (sync.is_short, sync.confirmable()) == (True, 3)
    sync.acked("b", 5, 2)
    assert (sync.is_short, sync.confirmable()) == (False, 5)


def test_the_lag_is_what_was_not_acked() -> None:
    sync = with_member(make())
    assert sync.lag_bytes("a") == 0
    sync.shipped(5, 1000)
    sync.shipped(9, 2000)
    assert sync.lag_bytes("a") == 9
    sync.acked("a", 5, 3000)
    assert sync.lag_bytes("a") == 4
    assert sync.lag_bytes("b") is None
    sync.joined("b", 9, 3500)
    assert sync.lag_bytes("b") == 0


def test_memory_is_bounded_for_one_that_never_acks_and_nobody_is_dropped_too_early() -> None:
    sync = with_member(make(ack_timeout_ms=3000))
    sync.joined("b", 0, 0)
    for now_ms in range(1, 20_000):
        sync.shipped(now_ms, now_ms)
        sync.acked("a", max(0, now_ms - 2000), now_ms)
        assert sync.tick(now_ms) == []
    assert len(sync._samples) == in_sync_module._SAMPLES_MAX
    sync.acked("b", 0, 20_000)
    assert sync.lag_bytes("b") == 19_999
    assert sync.lag_bytes("a") == 2000
    sync.left("b")
    assert len(sync._samples) <= 2000


def test_with_a_record_one_that_left_is_waited_for_until_the_smaller_set_is_recorded() -> None:
    sync = with_member(make(records_shrink=True))
    sync.writing(frozenset("a"))
    sync.written(frozenset("a"))
    sync.shipped(5, 0)
    sync.acked("a", 2, 0)
    sync.left("a")
    assert (sync.members, sync.wanted, sync.committed()) == (frozenset(), frozenset(), 2)
    sync.writing(frozenset())
    assert sync.committed() == 2
    sync.written(frozenset())
    assert (sync.wanted, sync.committed()) == (None, 5)


def test_one_that_leaves_while_it_is_being_recorded_is_waited_for() -> None:
    sync = with_member(make(records_shrink=True))
    sync.writing(frozenset("a"))
    sync.shipped(5, 0)
    sync.left("a")
    assert (sync.committed(), sync.wanted) == (0, frozenset())
    sync.written(frozenset("a"))
    assert (sync.committed(), sync.wanted) == (0, frozenset())


def test_an_ack_below_the_join_position_says_nothing_of_what_one_in_the_record_has() -> None:
    sync = make(records_shrink=True, recorded=["a"])
    sync.shipped(5, 0)
    sync.joined("a", 5, 0)
    sync.acked("a", 4, 0)
    sync.left("a")
    assert sync.committed() == 0


def test_one_that_is_recorded_after_it_left_is_waited_for_from_where_it_was() -> None:
    sync = with_member(with_member(make(records_shrink=True)), "b")
    sync.shipped(9, 0)
    sync.acked("a", 6, 0)
    sync.writing(frozenset("ab"))
    sync.left("a")
    sync.written(frozenset("ab"))
    sync.acked("b", 9, 0)
    assert sync.committed() == 6


def test_one_that_joins_at_an_earlier_position_owes_what_was_shipped_before() -> None:
    sync = make()
    sync.shipped(9, 0)
    sync.joined("a", 3, 50)
    sync.acked("a", 3, 60)
    assert sync.tick(59 + TIMEOUT_MS) == []
    assert sync.tick(60 + TIMEOUT_MS) == ["a"]


def test_one_that_the_record_does_not_surely_name_does_not_count_for_the_minimum() -> None:
    sync = with_member(make(records_shrink=True, min_in_sync=1))
    was_short = [sync.is_short]
    sync.writing(frozenset("a"))
    was_short.append(sync.is_short)
    sync.written(frozenset("a"))
    was_short.append(sync.is_short)
    sync.left("a")
    sync.writing(frozenset())
    with_member(sync)
    assert [*was_short, sync.is_short] == [True, True, False, True]


def test_nothing_is_promised_before_the_record_of_the_last_leader_is_changed() -> None:
    sync = make(records_shrink=True, recorded=["a"])
    sync.shipped(5, 0)
    assert (sync.committed(), sync.wanted) == (0, frozenset())
    sync.joined("a", 5, 0)
    sync.acked("a", 5, 0)
    assert (sync.committed(), sync.wanted) == (5, None)


def test_only_members_are_recorded_and_only_after_notice() -> None:
    sync = make(records_shrink=True)
    with pytest.raises(ValueError, match="not members: a"):
        sync.writing(frozenset("a"))
    with_member(sync)
    with pytest.raises(ValueError, match="without `writing`: a"):
        sync.written(frozenset("a"))
