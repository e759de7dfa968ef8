"""A connection that has to wait: for an alarm to be over, or for its output to go."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from leveret.core.broker.alarms import Watermark
from leveret.core.broker.deferred_work import AT_ONCE
from leveret.model.definitions import Binding
from leveret.session.amqp091 import connection as module
from leveret.session.amqp091 import publishing
from leveret.session.amqp091.blocked import BlockedReason
from leveret.session.amqp091.connection import AmqpState, ClientConnection
from leveret.wire.amqp091 import HEARTBEAT
from tests.unit.session.amqp091.fakes import FakeNode, connect, frame, publish, take

ALARMED, CALM = Watermark(ratio=0.0), Watermark()


class Alarmed:
    """A node whose memory is low, and a client that can hear of it."""

    def __init__(self) -> None:
        self.node = FakeNode()
        self.session = connect(self.node, 1)
        self.session.client_properties = {"capabilities": {"connection.blocked": True}}
        self.session.receive(frame(commands.Queue.Declare(queue="q")), 0)
        take(self.session)
        self.node.alarms.measure(1, 1)
        self.node.alarms.set_memory(ALARMED)

    def gone_on(self) -> BlockedReason | None:
        """What is waited for after things have changed."""
        self.session.go_on(9)
        return self.session.blocked_reason

    def stored(self) -> int:
        self.node.flush(self.session)
        return len(self.node.messages()["q"])


def test_a_publish_in_an_alarm_waits_until_it_is_over_and_nothing_overtakes_it() -> None:
    one = Alarmed()
    one.session.receive(b"".join([*publish(b"1"), frame(commands.Basic.Qos())]), 0)
    assert one.session.blocked_reason is BlockedReason.ALARM
    assert [dict(reply) for _, reply in take(one.session)] == [{"reason": "low on memory"}]
    one.session.receive(b"".join(publish(b"2")), 1)
    one.session.go_on(2)
    assert (take(one.session), one.stored()) == ([], 0)
    one.node.alarms.set_memory(CALM)
    assert one.gone_on() is None
    assert [type(reply) for _, reply in take(one.session)] == [
        commands.Connection.Unblocked,
        commands.Basic.QosOk,
    ]
    assert one.stored() == 2


def test_who_does_not_publish_is_served_in_an_alarm() -> None:
    one = Alarmed()
    one.session.receive(frame(commands.Basic.Consume(queue="q", consumer_tag="c")), 0)
    assert [type(reply) for _, reply in take(one.session)] == [commands.Basic.ConsumeOk]
    assert one.session.shown_state == "blocking"


def test_a_client_that_cannot_hear_of_it_is_blocked_in_silence() -> None:
    one = Alarmed()
    one.session.client_properties = {}
    one.session.receive(b"".join(publish(b"1")), 0)
    assert (one.session.blocked_reason, take(one.session)) == (BlockedReason.ALARM, [])
    assert one.session.shown_state == "blocked"
    one.node.alarms.set_memory(CALM)
    one.session.go_on(1)
    assert (take(one.session), one.stored()) == ([], 1)


@pytest.mark.parametrize("missing_bytes", [32, 9, 1], ids=["header and body", "body", "end of the body"])
def test_a_message_under_way_when_the_alarm_begins_is_taken(missing_bytes: int) -> None:
    one = Alarmed()
    one.node.alarms.set_memory(CALM)
    octets = b"".join(publish(b"1"))
    one.session.receive(octets[:-missing_bytes], 0)
    one.node.alarms.set_memory(ALARMED)
    one.session.receive(octets[-missing_bytes:] + octets, 1)
    assert (one.session.blocked_reason, one.stored()) == (BlockedReason.ALARM, 1)


def test_messages_under_way_on_all_channels_take_only_so_much_memory_in_an_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each channel may have begun a message of 128 MiB before the alarm."""
    monkeypatch.setattr(module, "UNDER_WAY_BYTES_MAX", 1000)
    one, channels = Alarmed(), range(2, 12)
    one.node.alarms.set_memory(CALM)
    method, header, *bodies = zip(
        *(publish(b"." * 300, channel=each, steps=(100, 200)) for each in channels), strict=True
    )
    one.session.receive(b"".join(frame(commands.Channel.Open(), each) for each in channels), 0)
    one.session.receive(b"".join([*method, *header]), 0)
    one.node.alarms.set_memory(ALARMED)
    one.session.receive(b"".join(octets for parts in bodies for octets in parts), 1)
    assert one.session.blocked_reason is BlockedReason.ALARM
    held = sum(each.incoming.body.tell() for each in one.session.channels.values() if each.incoming)
    assert (held, one.stored()) == (900, 0), "the last header counts, too"
    one.node.alarms.set_memory(CALM)
    assert one.gone_on() is None
    assert one.stored() == len(channels)


@pytest.mark.parametrize("is_transaction", [False, True])
def test_a_memory_alarm_does_not_last_for_as_long_as_a_client_leaves_its_messages_unfinished(
    is_transaction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that had sent half of a message on each of 60 channels held the alarm for ever, also after its end."""
    monkeypatch.setattr(module, "UNDER_WAY_BYTES_MAX", 50)
    one = Alarmed()
    one.node.alarms.set_memory(CALM)
    if is_transaction:
        one.session.receive(frame(commands.Tx.Select()), 0)
        one.session.receive(b"".join(publish(b"." * 100)), 0)
    else:
        one.session.receive(b"".join(publish(b"." * 200, steps=(100, 100))[:3]), 0)
    assert one.session.channels[1].unfinished_bytes == 100
    one.node.alarms.set_memory(ALARMED)
    states = []
    for now_ms in (1000, 1000 + module.UNFINISHED_TIMEOUT_MS - 1, 1000 + module.UNFINISHED_TIMEOUT_MS):
        one.session.receive(HEARTBEAT, now_ms)
        one.session.tick(now_ms)
        states.append(one.session.state)
    assert states == [AmqpState.OPEN, AmqpState.OPEN, AmqpState.CLOSING]
    [*_, (_, close)] = take(one.session)
    assert (close.reply_code, "memory alarm: 100 bytes" in close.reply_text) == (320, True)
    assert not one.session.channels


def test_a_client_without_unfinished_messages_waits_for_any_alarms_end() -> None:
    one = Alarmed()
    one.session.heartbeat_ms = 0
    one.session.receive(b"".join(publish(b"1")), 0)
    for minute in range(100):
        one.session.tick(minute * 60_000)
    assert (one.session.state, one.session.blocked_reason) == (AmqpState.OPEN, BlockedReason.ALARM)


def test_a_blocked_connection_can_be_closed() -> None:
    one = Alarmed()
    one.session.receive(b"".join(publish(b"1")), 0)
    one.session.force_close("because")
    assert (one.session.state, one.session.blocked_reason) == (AmqpState.CLOSING, None)
    one.session.receive(frame(commands.Connection.CloseOk(), 0), 1)
    assert one.session.state is AmqpState.CLOSED


def test_a_client_that_never_answers_our_close_is_given_up() -> None:
    session = connect(FakeNode(), 1)
    session.receive(b"", 1000)
    session.force_close("because")
    states = []
    for now_ms in (1000, 1001):
        session.tick(now_ms + module.CLOSING_TIMEOUT_MS)
        states.append(session.state)
    assert states == [AmqpState.CLOSING, AmqpState.CLOSED]


def test_answers_are_made_only_as_fast_as_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few octets may ask for megabytes."""
    node = FakeNode()
    session = connect(node, 1)
    session.receive(frame(commands.Queue.Declare(queue="q")), 0)
    for _ in range(50):
        session.receive(b"".join(publish(b"." * 1000)), 0)
    node.flush(session)
    take(session)
    monkeypatch.setattr(module, "OUT_BYTES_MAX", 5000)
    session.receive(frame(commands.Basic.Get(queue="q", no_ack=True)) * 50, 0)
    answers, rounds = 0, 0
    while True:
        assert session.out_bytes < 5000 + 1200
        answers += sum(isinstance(reply, commands.Basic.GetOk) for _, reply in take(session))
        if session.blocked_reason is None:
            break
        assert session.blocked_reason is BlockedReason.OUTPUT
        session.go_on(0)
        rounds += 1
    assert (answers, session.blocked_reason) == (50, None)
    assert rounds >= 9


def test_of_what_takes_long_no_more_is_taken_in_a_row_than_a_turn_has() -> None:
    node = FakeNode()
    session = connect(node)
    session.turn_frames = 40
    opened = [frame(commands.Channel.Open(), number) for number in range(1, 26)]
    session.receive(b"".join(opened), 0)
    counts = []
    while session.blocked_reason is BlockedReason.TURN:
        counts.append(len(take(session)))
        session.go_on(1)
    counts.append(len(take(session)))
    assert counts == [10, 10, 5]
    assert list(session.channels) == list(range(1, 26))


def test_what_comes_while_others_have_their_turn_is_taken_behind_the_rest() -> None:
    node = FakeNode()
    session = connect(node, 1)
    session.turn_frames = 4
    session.receive(
        frame(commands.Queue.Declare(queue="a")) + frame(commands.Queue.Declare(queue="b"))[:9], 0
    )
    session.receive(frame(commands.Queue.Declare(queue="b"))[9:] + frame(commands.Queue.Delete(queue="a")), 0)
    while session.blocked_reason is BlockedReason.TURN:
        session.go_on(1)
    assert [type(reply) for _, reply in take(session)] == [
        commands.Queue.DeclareOk,
        commands.Queue.DeclareOk,
        commands.Queue.DeleteOk,
    ]
    assert set(node.broker.queues) == {("/", "b")}


def test_of_methods_with_large_tables_few_are_taken_in_a_row() -> None:
    """One of 128 KiB may hold 131,000 values, and a read four of them."""
    session = connect(FakeNode(), 1)
    session.turn_frames = 20
    arguments: dict[str, Any] = {"x": "." * 20 * module.FRAME_BYTES}
    session.receive(
        b"".join(frame(commands.Queue.Declare(queue=name, arguments=arguments)) for name in "abc"), 0
    )
    counts = []
    while session.blocked_reason is BlockedReason.TURN:
        counts.append(len(take(session)))
        session.go_on(1)
    assert [*counts, len(take(session))] == [1, 1, 1]


@pytest.mark.parametrize("exchange", ["", "amq.headers"])
def test_of_messages_with_large_headers_few_are_taken_in_a_row(
    exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "LARGE_HEADER_BYTES", 500)
    node = FakeNode()
    session = connect(node, 1)
    session.turn_frames = 10
    session.receive(frame(commands.Queue.Declare(queue="q")), 0)
    node.broker.bind(Binding(vhost="/", source="amq.headers", destination="q", arguments={"n": 1}))
    headers = {"n": 1, "x": "." * 10 * module.FRAME_BYTES}
    octets = [
        part
        for number in range(5)
        for part in publish(b"%d" % number, "q", exchange, headers=headers | {"m": number})
    ]
    session.receive(b"".join(octets), 0)
    turns = 1
    while session.blocked_reason is BlockedReason.TURN:
        session.go_on(1)
        turns += 1
    assert turns >= 5
    node.flush(session)
    assert [body for _, _, body in node.messages()["q"]] == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("is_regular", [True, False])
def test_messages_that_are_compared_with_many_bindings_are_taken_a_few_in_a_row(is_regular: bool) -> None:
    """A read holds 400 of them: with 1,000 bindings of a headers exchange a step of half a second."""
    node = FakeNode()
    session = connect(node, 1)
    session.turn_frames = 100
    session.receive(frame(commands.Queue.Declare(queue="q")), 0)
    for number in range(400):
        # Lists are compared one by one.
        arguments = {"x-match": "all", "n": [number]}
        node.broker.bind(Binding(vhost="/", source="amq.headers", destination="q", arguments=arguments))
    # Octets in two frames are no regular message.
    steps = () if is_regular else (1,)
    octets = b"".join(
        part
        for number in range(10)
        for part in publish(bytes((number,)) * 2, "", "amq.headers", steps=steps, headers={"n": [number]})
    )
    session.receive(octets, 0)
    turns = 1
    while session.blocked_reason is BlockedReason.TURN:
        session.go_on(1)
        turns += 1
    assert turns >= 5, "two in a turn, each as 50 frames"
    node.flush(session)
    assert [body for _, _, body in node.messages()["q"]] == [bytes((number,)) * 2 for number in range(10)]


def bind_many(node: FakeNode) -> ClientConnection:
    session = connect(node, 1)
    session.wake = lambda: session.go_on(0)
    session.receive(frame(commands.Queue.Declare(queue="q")), 0)
    session.receive(frame(commands.Exchange.Declare(exchange="x")), 0)
    for number in range(3 * AT_ONCE):
        node.broker.bind(Binding(vhost="/", source="x", destination="q", routing_key=str(number)))
    take(session)
    return session


@pytest.mark.parametrize("name", ["q", ""])
def test_a_deletion_that_takes_turns_is_answered_when_the_queue_is_gone_and_nothing_overtakes_it(
    name: str,
) -> None:
    node = FakeNode()
    session = bind_many(node)
    session.client_properties = {"capabilities": {"consumer_cancel_notify": True}}
    session.receive(frame(commands.Basic.Consume(queue="q")), 0)
    take(session)
    session.receive(frame(commands.Queue.Delete(queue=name)) + frame(commands.Basic.Qos()), 0)
    for _ in range(3 * AT_ONCE):
        assert take(session) == []
        assert session.blocked_reason is BlockedReason.REMOTE
        node.flush(session)
        if not node.broker.queues:
            break
    assert [type(reply) for _, reply in take(session)] == [
        commands.Queue.DeleteOk,
        commands.Basic.Cancel,
        commands.Basic.QosOk,
    ]
    assert session.waits_for_definitions
    assert session.blocked_reason is None


def test_a_queue_of_many_bindings_tells_how_many_messages_went_with_it() -> None:
    node = FakeNode()
    session = bind_many(node)
    session.receive(b"".join([*publish(b"1"), *publish(b"2")]), 0)
    node.flush(session)
    session.receive(frame(commands.Queue.Delete(queue="q")), 0)
    while node.broker.queues:
        node.flush(session)
    session.receive(frame(commands.Queue.Delete(queue="q")), 0)
    assert [reply.message_count for _, reply in take(session)] == [2, 0]


def test_an_exchange_of_many_bindings_is_gone_when_that_is_answered() -> None:
    node = FakeNode()
    session = bind_many(node)
    session.receive(frame(commands.Exchange.Delete(exchange="x")), 0)
    while "x" in node.broker.topology("/").exchanges:
        assert take(session) == []
        node.flush(session)
    assert [type(reply) for _, reply in take(session)] == [commands.Exchange.DeleteOk]


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("name", ["q", ""])
def test_who_declares_a_name_anew_before_a_deletion_is_answered_keeps_the_new_object(
    name: str, conditional: bool
) -> None:
    node = FakeNode()
    session, other = bind_many(node), connect(node, 1)
    session.wake = lambda: None
    session.receive(
        frame(commands.Queue.Delete(queue=name, if_empty=conditional))
        + frame(commands.Exchange.Delete(exchange="x")),
        0,
    )
    while node.broker.queues:
        node.flush(session)
    other.receive(frame(commands.Queue.Declare(queue="q")) + b"".join(publish(b"new")), 0)
    node.flush(other)
    session.go_on(0)
    assert [type(reply) for _, reply in take(session)] == [
        commands.Queue.DeleteOk,
        commands.Exchange.DeleteOk,
    ]
    assert [body for _, _, body in node.messages()["q"]] == [b"new"]


def test_an_exchange_declared_anew_before_its_deletion_is_answered_stays() -> None:
    node = FakeNode()
    session, other = bind_many(node), connect(node, 1)
    session.wake = lambda: None
    session.receive(frame(commands.Exchange.Delete(exchange="x")), 0)
    while "x" in node.broker.topology("/").exchanges:
        node.flush(session)
    other.receive(frame(commands.Exchange.Declare(exchange="x")), 0)
    session.go_on(0)
    assert [type(reply) for _, reply in take(session)] == [commands.Exchange.DeleteOk]
    assert "x" in node.broker.topology("/").exchanges


def test_a_client_that_leaves_while_its_queue_is_being_deleted_leaves_no_half_of_it() -> None:
    node = FakeNode()
    session = bind_many(node)
    session.receive(frame(commands.Queue.Delete(queue="q")), 0)
    session.lost()
    for _ in range(3 * AT_ONCE):
        node.flush(session)
    assert not node.broker.queues
