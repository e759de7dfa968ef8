"""session.amqp091.publishing: the fast way in and the long one leave the same messages in the queues."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pamqp import commands

from leveret.core.broker import routing
from leveret.model import definitions as d
from leveret.session.amqp091 import direct_reply
from leveret.session.amqp091.blocked import BlockedReason
from leveret.session.amqp091.connection import AmqpState, ClientConnection
from leveret.session.amqp091.connection_base import OUT_BYTES_MAX
from leveret.session.amqp091.publishing import ROUTES_MAX
from leveret.wire import amqp091 as wire
from tests.unit.session.amqp091.fakes import (
    BODY_MAX_BYTES,
    FRAME_MAX_BYTES,
    FakeNode,
    Stored,
    by_channel,
    connect,
    content,
    frame,
    publish,
    take,
)

SIZE = st.sampled_from([0, 1, 7, 300, BODY_MAX_BYTES - 1, BODY_MAX_BYTES, BODY_MAX_BYTES + 1, 9000])
STEPS = st.lists(st.integers(1, 4000), max_size=3).map(tuple)


@st.composite
def publishes(draw: st.DrawFn) -> list[tuple[int, list[bytes]]]:
    """(channel, frames) of some messages, with runs of equal shape among them."""
    made: list[tuple[int, list[bytes]]] = []
    for number in range(draw(st.integers(1, 5))):
        channel, size, steps = draw(st.sampled_from([1, 2])), draw(SIZE), draw(STEPS)
        if draw(st.booleans()):
            steps = ()
        key, exchange = draw(
            st.sampled_from([("q", ""), ("r", ""), ("none", ""), ("k", "amq.fanout"), ("k", "amq.direct")])
        )
        mandatory, mode = draw(st.booleans()), draw(st.sampled_from([1, 2]))
        for repeat in range(draw(st.integers(1, 3))):
            octets = f"{number}.{repeat}.".encode().ljust(size, b"x")[:size]
            frames = publish(
                octets, key, exchange, channel, mandatory=mandatory, steps=steps, delivery_mode=mode
            )
            made.append((channel, frames))
    return made


@st.composite
def interleaved(draw: st.DrawFn) -> list[bytes]:
    """The frames of messages on two channels, each channel's in order, the channels' mixed or not."""
    messages = draw(publishes())
    if draw(st.booleans()):
        return list(chain.from_iterable(frames for _, frames in messages))
    lanes = {n: list(chain.from_iterable(f for channel, f in messages if channel == n)) for n in (1, 2)}
    mixed: list[bytes] = []
    while lanes[1] or lanes[2]:
        lane = draw(st.sampled_from([n for n in (1, 2) if lanes[n]]))
        mixed += [lanes[lane].pop(0) for _ in range(min(len(lanes[lane]), draw(st.integers(1, 4))))]
    return mixed


def broker() -> tuple[FakeNode, ClientConnection]:
    """Queues q and r, both bound to amq.fanout, channels 1 and 2 in confirm mode."""
    node = FakeNode()
    session = connect(node, 1, 2)
    setup = [frame(commands.Queue.Declare(queue=name, durable=True)) for name in ("q", "r")]
    setup += [
        frame(commands.Queue.Bind(queue=name, exchange="amq.fanout", routing_key="")) for name in ("q", "r")
    ]
    setup += [frame(commands.Confirm.Select(), channel) for channel in (1, 2)]
    session.receive(b"".join(setup), 0)
    take(session)
    return node, session


def outcome(pieces: list[bytes]) -> tuple[dict[str, list[Stored]], dict[int, bytes]]:
    """What the queues hold, and what each channel was sent, after these reads and one flush."""
    node, session = broker()
    for piece in pieces:
        session.receive(piece, 0)
    node.flush(session)
    assert session.state is AmqpState.OPEN
    return node.messages(), by_channel(b"".join(session.take_output()))


def told_by_tag(output: bytes) -> tuple[list[bytes], dict[int, int]]:
    """The frames of a channel but its confirms, and the method (80 ack, 120 nack) that answered each delivery tag.

    Refusals of one read may be one nack for many, so that only the tags can be compared.
    """
    others: list[bytes] = []
    answered: dict[int, int] = {}
    while output:
        end = 8 + int.from_bytes(output[3:7], "big")
        one, output = output[:end], output[end:]
        kind = int.from_bytes(one[9:11], "big")
        if one[0] != 1 or one[7:9] != b"\0\x3c" or kind not in (80, 120):
            others.append(one)
            continue
        tag, is_multiple = int.from_bytes(one[11:19], "big"), one[19] & 1
        tags = set(range(1 if is_multiple else tag, tag + 1)) - set(answered)
        assert tags, "a tag is answered twice"
        answered |= dict.fromkeys(tags, kind)
    return others, answered


def test_a_nack_for_many_answers_the_tags_that_are_open() -> None:
    ack, nack = frame(commands.Basic.Ack(2, True)), frame(commands.Basic.Nack(4, True))
    assert told_by_tag(ack + nack) == ([], {1: 80, 2: 80, 3: 120, 4: 120})


@given(interleaved(), st.data())
def test_publishes_in_one_read_frame_by_frame_or_cut_anywhere_leave_the_same(
    frames: list[bytes], data: st.DataObject
) -> None:
    octets = b"".join(frames)
    at_once = outcome([octets])
    assert outcome(frames) == at_once
    # A message with other frames between its own goes the long path.
    assert outcome([wire.HEARTBEAT.join(frames)]) == at_once
    cuts = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=4)))
    pieces = [octets[a:b] for a, b in zip([0, *cuts], [*cuts, len(octets)], strict=True)]
    assert outcome(pieces) == at_once


def test_a_message_that_comes_in_several_reads_is_gathered_as_one_that_comes_at_once() -> None:
    node, session = broker()
    for number in range(3):
        *parts, last = publish(b"%d" % number)
        assert [session.receive(part, 0) for part in (*parts, last[:5], last[5:])] == [
            False,
            False,
            False,
            True,
        ]
    assert session.channels[1].incoming is None
    node.flush(session)
    assert [body for _, _, body in node.messages()["q"]] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("whole", [1, 2], ids=["a method", "a method and a header"])
def test_frames_of_another_channel_in_the_midst_of_a_message_are_answered_at_once(whole: int) -> None:
    node, session = broker()
    frames = publish(b"1" * 300)
    session.receive(b"".join(frames[:whole]), 0)
    session.receive(frame(commands.Queue.Declare(queue="q", passive=True), 2), 0)
    assert [type(value) for _, value in take(session)] == [commands.Queue.DeclareOk]
    session.receive(b"".join(frames[whole:]), 0)
    node.flush(session)
    assert [body for _, _, body in node.messages()["q"]] == [b"1" * 300]


def test_every_cut_of_a_few_small_publishes_leaves_the_same() -> None:
    octets = b"".join([*publish(b"one"), *publish(b"two"), *publish(b""), *publish(b"four", "r")])
    at_once = outcome([octets])
    assert [body for _, _, body in at_once[0]["q"]] == [b"one", b"two", b""]
    for cut in range(1, len(octets)):
        assert outcome([octets[:cut], octets[cut:]]) == at_once
    assert outcome([octets[i : i + 1] for i in range(len(octets))]) == at_once


@example([(1, "full", "", 1, {}, 5)])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2]),
            st.sampled_from(["q", "r", "none", "full"]),
            st.sampled_from(["", "amq.fanout", "amq.topic"]),
            st.integers(1, 30),
            st.sampled_from(
                [{}, {"message_id": "m"}, {"expiration": "60000"}, {"priority": 1}, {"headers": {"a": 1}}]
            ),
            st.integers(1, 6),
        ),
        max_size=30,
    )
)
def test_messages_that_differ_are_in_each_queue_in_the_order_of_their_publishes(
    wanted: list[tuple[int, str, str, int, dict[str, Any], int]],
) -> None:
    """One read, in which destinations alternate, and one read a frame: the same queues, the same confirms."""
    setup = [
        commands.Queue.Declare(queue="full", arguments={"x-max-length": 3, "x-overflow": "reject-publish"}),
        commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="#"),
        commands.Queue.Bind(queue="r", exchange="amq.topic", routing_key="r"),
    ]
    frames: list[bytes] = []
    for number, (channel, key, exchange, size, properties, count) in enumerate(wanted):
        for each in range(count):
            octets = b"%d.%d." % (number, each)
            octets = octets.ljust(len(octets) + size, b"x")
            frames += publish(octets, key, exchange, channel, mandatory=size < 3, **properties)
    octets = b"".join(map(frame, setup))
    stored, told = outcome([octets, b"".join(frames)])
    stored_apart, told_apart = outcome([octets, *frames])
    assert stored == stored_apart
    assert {n: told_by_tag(each) for n, each in told.items()} == {
        n: told_by_tag(each) for n, each in told_apart.items()
    }


def test_publishes_that_are_alike_are_gathered_under_one_head() -> None:
    node, session = broker()
    session.receive(b"".join(chain.from_iterable(publish(b"%03d" % n) for n in range(50))), 0)
    session.receive(b"".join(publish(b"050")), 0)
    gathered = node.queue("q").gathered.take()
    assert [len(each) for each in gathered] == [3, 48]
    assert gathered[1].head is not None
    assert [body for each in gathered for body in each.bodies] == [b"%03d" % n for n in range(51)]


@pytest.mark.parametrize("exchange", ["", "amq.fanout"], ids=["one queue", "two queues"])
@pytest.mark.parametrize(
    ("modes", "needs_sync"), [((1, 2), True), ((2, 1), True), ((1, 1, 2, 1), True), ((1, 1), False)], ids=str
)
def test_a_confirm_waits_for_the_disk_if_any_message_of_a_read_is_persistent(
    modes: tuple[int, ...], needs_sync: bool, exchange: str
) -> None:
    """Messages that differ are gathered together, whichever of them comes first."""
    _, session = broker()
    read = [publish(b"%d" % number, "q", exchange, delivery_mode=mode) for number, mode in enumerate(modes)]
    session.receive(b"".join(chain.from_iterable(read)), 0)
    [batch] = session.channels[1].close_batches()
    assert (batch.count, batch.needs_sync) == (len(modes), needs_sync)


def test_a_message_is_stored_with_its_exchange_key_and_header_as_they_came() -> None:
    node, session = broker()
    frames = publish(b"body", "key", "amq.fanout", content_type="text/plain", headers={"a": 1})
    session.receive(b"".join(frames), 0)
    node.flush(session)
    assert (
        node.messages()["q"] == node.messages()["r"] == [(b"\x0aamq.fanout\x03key", frames[1][7:-1], b"body")]
    )


def test_a_route_that_changed_is_used_at_once() -> None:
    node, session = broker()
    one, unbind = (
        publish(b"1", "", "amq.fanout"),
        commands.Queue.Unbind(queue="q", exchange="amq.fanout", routing_key=""),
    )
    session.receive(b"".join([*one, *one, frame(unbind), *one]), 0)
    session.receive(b"".join(one), 0)
    node.flush(session)
    assert (len(node.messages()["q"]), len(node.messages()["r"])) == (2, 4)


def test_a_route_is_of_its_connection_and_channel() -> None:
    node, session = broker()
    other = connect(node, 1)
    for each in (session, other):
        each.receive(b"".join(publish(b"1")), 0)
    session.receive(b"".join(publish(b"2", channel=2)), 0)
    assert set(session.confirming) == {session.channels[1], session.channels[2]}
    assert not other.confirming


def test_no_more_routes_are_kept_than_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ROUTES_MAX >= 1000
    monkeypatch.setattr("leveret.session.amqp091.publishing.ROUTES_MAX", 8)
    node, session = broker()
    for number in range(50):
        session.receive(frame(commands.Queue.Declare(queue=f"key{number}")), 0)
    session.receive(b"".join(chain.from_iterable(publish(b"1", f"key{n}") for n in range(50))), 0)
    assert 0 < len(session.publisher._routes) <= 8
    assert 0 < len(session.publisher._destinations) <= 8
    node.flush(session)
    assert all(node.queue(f"key{number}").message_count == 1 for number in range(50))


def test_all_connections_together_know_no_more_routes_than_their_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leveret.session.amqp091.publishing.ROUTES_OF_NODE_MAX", 30)
    node, session = broker()
    others = [connect(node, 1) for _ in range(5)]
    for each in (session, *others):
        each.receive(b"".join(chain.from_iterable(publish(b"1", f"key{n}") for n in range(20))), 0)
        known = sum(
            len(one.publisher._routes) + len(one.publisher._destinations) for one in (session, *others)
        )
        assert node.broker.known_routes == known <= 30 + 2 * len(others)
    for each in (session, *others):
        each.lost()
    assert node.broker.known_routes == 0


# -- what is refused --------------------------------------------------------------------------


def test_cuts_near_the_ends_of_large_body_frames_leave_the_same() -> None:
    large = publish(b"x" * 9000, mandatory=True)
    octets = b"".join([*large, *publish(b"behind", channel=2), *large, *publish(b"last")])
    at_once = outcome([octets])
    assert [len(body) for _, _, body in at_once[0]["q"]] == [9000, 6, 9000, 4]
    ends = [len(b"".join(large[:count])) for count in range(2, len(large) + 1)]
    for cut in {end + near for end in ends for near in range(-9, 10)}:
        for later in (cut + 3, cut + 4096, len(octets)):
            assert outcome([octets[:cut], octets[cut:later], octets[later:]]) == at_once


@pytest.mark.parametrize("reason", [BlockedReason.TURN, BlockedReason.OUTPUT])
@pytest.mark.parametrize("cut", [1, 5, 7, 3000, 3008])
def test_the_end_of_a_large_frame_and_the_frames_behind_it_wait_while_the_peer_is_blocked(
    cut: int, reason: BlockedReason
) -> None:
    node, session = broker()
    method, header, *bodies = publish(b"x" * 9000, steps=(3001, 3001))
    session.receive(method + header + bodies[0] + bodies[1][:cut], 0)
    if reason is BlockedReason.TURN:
        session.turn_frames = 1
    else:
        session.send(bytes(OUT_BYTES_MAX))
    behind = [*bodies[2:], *publish(b"behind"), frame(commands.Basic.Get(queue="none"))]
    session.receive(bodies[1][cut:] + b"".join(behind), 0)
    assert session.blocked_reason is reason
    session.receive(b"".join(publish(b"never")), 0)
    session.take_output()
    for _ in range(9):
        session.go_on(0)
    node.flush(session)
    assert [len(body) for _, _, body in node.messages()["q"]] == [9000, 6]
    assert closes(session) == [(1, 404)]


def closes(session: ClientConnection) -> list[tuple[int, int | None]]:
    """(channel, reply code) of the closes that were sent."""
    kinds = (commands.Channel.Close, commands.Connection.Close)
    return [(channel, value.reply_code) for channel, value in take(session) if isinstance(value, kinds)]


@pytest.mark.parametrize("cut", [None, 3, 2500])
@pytest.mark.parametrize(("end", "more", "code"), [(b"\0", b"", 501), (b"\xce", b"y", 501)])
def test_a_large_body_frame_that_is_wrong_ends_the_connection_wherever_it_was_cut(
    cut: int | None, end: bytes, more: bytes, code: int
) -> None:
    node, session = broker()
    method, header, first, _ = publish(b"x" * 6000, steps=(3000, 3000))
    body = wire.frame(wire.FRAME_BODY, 1, b"x" * 3000 + more)
    octets = body[:-1] + end + b"".join(publish(b"behind"))
    session.receive(method + header + first, 0)
    for piece in [octets] if cut is None else [octets[:cut], octets[cut:]]:
        session.receive(piece, 0)
    assert closes(session) == [(0, code)]
    node.flush(session)
    assert node.messages()["q"] == []


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_body_frame_without_its_end_ends_the_connection_after_what_came_before(pieces: int) -> None:
    node, session = broker()
    whole = b"".join([*publish(b"1"), *publish(b"2")])
    broken = b"".join(publish(b"3"))[:-1] + b"\0" + b"".join(publish(b"4"))
    for piece in [whole + broken] if pieces == 1 else [whole, broken]:
        session.receive(piece, 0)
    assert closes(session) == [(0, 501)]
    assert session.state is AmqpState.CLOSING
    node.flush(session)
    assert [body for _, _, body in node.messages()["q"]] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([*publish(b"abc")[:2], b"\x03\0\1\0\0\0\4abcd\xce"], 501),
        ([publish(b"abc")[0], *publish(b"abc")], 505),
        ([*publish(b"abc")[:2], *publish(b"abc")], 505),
        (content(b"abc"), 505),
        ([*publish(b""), b"\x03\0\1\0\0\0\0\xce"], 505),
        ([frame(commands.Basic.Publish(0, "", "q", False, True)), *content(b"abc")], 540),
        ([b"\1\0\1\0\0\0\5\0\x3c\0\x28\0\xce"], 501),
        ([publish(b"abc")[0], b"\2\0\1\0\0\0\5\0\x3c\0\0\0\xce"], 501),
        ([publish(b"abc")[0], b"\2\0\1\0\0\0\x0e\0\x32\0\0" + bytes(10) + b"\xce"], 505),
        ([b"\3\0\1" + (FRAME_MAX_BYTES + 1).to_bytes(4, "big")], 501),
        ([publish(b"abc")[0], b"\2\0\1" + (FRAME_MAX_BYTES + 1).to_bytes(4, "big")], 501),
        ([b"\1\0\1\xff\xff\xff\xff\0\x3c\0\x28"], 501),
    ],
    ids=[
        "body too long", "method in a message", "method after header", "content alone", "body after empty body",
        "immediate", "short method", "short header", "header of another class", "frame too large", "header too large",
        "size that lies",
    ],
)  # fmt: skip
def test_content_that_breaks_the_rules_ends_the_connection_and_stores_nothing(
    frames: list[bytes], code: int
) -> None:
    for pieces in ([b"".join(frames)], frames):
        node, session = broker()
        for piece in pieces:
            session.receive(piece, 0)
        assert closes(session) == [(0, code)]
        node.flush(session)
        assert all(body == b"" for _, _, body in node.messages()["q"])


@pytest.mark.parametrize("is_alone", [True, False], ids=["the long way", "the fast way"])
@pytest.mark.parametrize(
    ("expiration", "why"),
    [
        ("315360000000", ""),
        ("315360000001", "{value_too_large,315360000001}"),
        ("99999999999999", "{value_too_large,99999999999999}"),
        ("9" * 255, f"{{value_too_large,{'9' * 255}}}"),
        ("0" * 254 + "5", ""),
        ("+5", ""),
        ("-0", ""),
        ("-1", "{value_negative,-1}"),
        ("+", "no_integer"),
        ("++5", "no_integer"),
        (" 5", "no_integer"),
        ("+5_0", '{leftover_string,"_0"}'),
    ],
)
def test_an_expiration_is_what_rabbitmq_reads_as_a_number_of_at_most_ten_years(
    expiration: str, why: str, is_alone: bool
) -> None:
    node, session = broker()
    before = [] if is_alone else publish(b"0", expiration="5")
    session.receive(b"".join([*before, *publish(b"1", expiration=expiration)]), 0)
    texts = [value.reply_text for _, value in take(session) if isinstance(value, commands.Channel.Close)]
    assert texts == ([f"PRECONDITION_FAILED - invalid expiration '{expiration}': {why}"[:255]] if why else [])
    node.flush(session)
    kept = [record[0].expiration_ms for record in node.logs.get(node.queue("q"), []) if record]
    assert kept[len(before[:1]) :] == ([] if why else [int(expiration)])


def test_a_channel_counts_as_confirmed_what_it_was_not_refused() -> None:
    node, session = broker()
    limits: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    session.receive(frame(commands.Queue.Declare(queue="full", arguments=limits)), 0)
    session.receive(b"".join(chain.from_iterable(publish(b"%d" % n, "full") for n in range(10))), 0)
    node.flush(session)
    assert session.channels[1].counters.confirm == session.counters.confirm == 1
    mixed = [publish(b"%d" % n, key) for n in range(5) for key in ("q", "q", "full")]
    session.receive(b"".join(chain.from_iterable(mixed)), 0)
    node.flush(session)
    assert session.channels[1].counters.confirm == session.counters.confirm == 11


@pytest.mark.parametrize("limit", [{"max-length": 7}, {"max-length-bytes": 18}], ids=str)
def test_a_queue_that_rejects_publishes_gathers_them_as_any_other_until_it_has_a_limit(
    limit: dict[str, Any],
) -> None:
    """Quorum queues that keep their dead letters have such an overflow, and mostly no limit."""
    node, session = broker()
    rejecting = commands.Queue.Declare(queue="open", arguments={"x-overflow": "reject-publish"})
    session.receive(frame(rejecting), 0)
    session.receive(b"".join(chain.from_iterable(publish(b"1" * n, "open") for n in range(1, 6))), 0)
    assert [len(part) for part in node.queue("open").gathered.parts] == [5]
    node.broker.apply(d.Put(d.Policy(vhost="/", name="p", pattern="^open$", definition=limit)))
    node.broker.refresh_policies()
    session.receive(b"".join(chain.from_iterable(publish(b"2" * n, "open") for n in range(1, 6))), 0)
    node.flush(session)
    assert (len(node.messages()["open"]), session.counters.confirm) == (7, 7)


def test_a_message_larger_than_the_limit_closes_its_channel() -> None:
    node, session = broker()
    head = wire.frame(wire.FRAME_HEADER, 1, b"\0\x3c\0\0" + (1 << 40).to_bytes(8, "big") + b"\0\0")
    session.receive(publish(b"")[0] + head + b"".join(publish(b"2", channel=2)), 0)
    assert closes(session) == [(1, 406)]
    node.flush(session)
    assert [body for _, _, body in node.messages()["q"]] == [b"2"]


def test_a_foreign_user_id_is_for_users_with_the_tag_impersonator_while_they_have_it() -> None:
    node, session = broker()
    foreign = publish(b"1", user_id="root")
    for tags in (("administrator", "impersonator"), ("administrator",)):
        node.broker.apply(d.Put(d.User(name="guest", password_hash="", tags=tags)))
        session.receive(b"".join([*foreign, *foreign]), 0)
    assert closes(session) == [(1, 406)]
    node.flush(session)
    assert [body for _, _, body in node.messages()["q"]] == [b"1"] * 2


def test_a_foreign_user_id_closes_the_channel_also_on_the_fast_way() -> None:
    node, session = broker()
    own, foreign = publish(b"1", user_id="guest"), publish(b"2", user_id="root")
    session.receive(b"".join([*own, *foreign, *own]), 0)
    assert closes(session) == [(1, 406)]
    node.flush(session)
    assert [body for _, _, body in node.messages()["q"]] == [b"1"]


def test_a_request_for_replies_without_their_consumer_is_refused_before_other_properties_are() -> None:
    _, session = broker()
    wrong = publish(b"1", reply_to="amq.rabbitmq.reply-to", user_id="root", expiration="x")
    session.receive(b"".join(wrong), 0)
    texts = [each.reply_text for _, each in take(session) if isinstance(each, commands.Channel.Close)]
    assert texts == ["PRECONDITION_FAILED - fast reply consumer does not exist"]


def test_a_reply_is_no_queue_for_a_mandatory_message_and_a_copy_may_be_one() -> None:
    """As RabbitMQ 3.10.8 has it."""
    node = FakeNode()
    session = connect(node, 1, 2)
    asking = [
        commands.Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True),
        commands.Queue.Declare(queue="q"),
    ]
    session.receive(b"".join(map(frame, asking)), 0)
    take(session)
    [name] = node.broker.direct_replies
    session.receive(b"".join(publish(b"1", name, channel=2, mandatory=True)), 0)
    session.receive(b"".join(publish(b"2", "q", channel=2, mandatory=True, headers={"CC": [name]})), 0)
    sent = [(channel, getattr(value, "name", value)) for channel, value in take(session)]
    reply = [(1, "Basic.Deliver"), (1, "ContentHeader")]
    returned = [(2, "Basic.Return"), (2, "ContentHeader"), (2, b"1")]
    assert sent == [*reply, (1, b"1"), *returned, *reply, (1, b"2")]
    node.flush(session)
    assert node.queue("q").ready_count == 1


def test_a_key_that_is_matched_in_too_many_ways_closes_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "VISITS_MAX", 5)
    node, session = broker()
    node.broker.bind(d.Binding(vhost="/", source="amq.topic", destination="q", routing_key="#.a.#"))
    session.receive(b"".join(publish(b"1", "a", "amq.topic")), 0)
    assert not take(session)
    session.receive(b"".join(publish(b"2", "a.a.a", "amq.topic")), 0)
    assert closes(session) == [(1, 406)]
    node.flush(session)
    assert [body for _, _, body in node.messages()["q"]] == [b"1"]


def test_a_refused_key_counts_for_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a client could have many refused in a row, each on another channel."""
    monkeypatch.setattr(routing, "VISITS_MAX", 1000)
    node = FakeNode()
    session = connect(node, 1, 2, 3)
    session.turn_frames = 30
    for number in range(20):
        pattern = ".".join(["#.a"] * number + ["#"])
        node.broker.bind(
            d.Binding(
                vhost="/",
                source="amq.topic",
                destination_type="exchange",
                destination="amq.fanout",
                routing_key=pattern,
            )
        )
    session.receive(
        b"".join(
            octets
            for each in (1, 2, 3)
            for octets in publish(b"1", ".".join("a" * 60), "amq.topic", channel=each)
        ),
        0,
    )
    assert closes(session) == [(1, 406)]
    assert session.blocked_reason is BlockedReason.TURN


def test_replies_that_a_client_does_not_read_take_only_so_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct_reply, "UNREAD_BYTES_MAX", 1000)
    node = FakeNode()
    asking, answering = connect(node, 1), connect(node, 1)
    asking.receive(frame(commands.Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True)), 0)
    take(asking)
    [name] = node.broker.direct_replies

    def replies(count: int) -> int:
        for _ in range(count):
            answering.receive(b"".join(publish(b"." * 100, name)), 0)
        return sum(isinstance(each, bytes) for _, each in take(asking))

    assert replies(20) == 20
    asking.is_paused = True
    assert replies(20) == 5
    assert (node.deaf, node.broker.counters.drop_unroutable) == ([("test", "guest")], 15)
    asking.resume()
    assert replies(20) == 20


HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "team": st.sampled_from(["red", "blue", "x" * 300]),
        "level": st.sampled_from([1, 2, "1"]),
        "other": st.integers(0, 3),
    },
)


@settings(max_examples=60)
@given(st.lists(st.tuples(HEADERS, st.sampled_from(["k", "r"]), st.booleans()), min_size=1, max_size=25))
def test_a_destination_that_is_known_by_headers_is_the_one_that_a_look_finds(
    messages: list[tuple[dict[str, Any], str, bool]],
) -> None:
    """In one read, messages with the same named headers are looked up once; alone, each is looked at."""

    def stored(*, at_once: bool) -> dict[str, list[bytes]]:
        node, session = broker()
        bind = partial(commands.Queue.Bind, exchange="amq.headers", routing_key="")
        setup: list[Any] = [
            bind(queue="q", arguments={"team": "red", "x-match": "all"}),
            commands.Exchange.Declare(exchange="deep", exchange_type="headers"),
            commands.Exchange.Bind(
                destination="deep", source="amq.headers", routing_key="", arguments={"level": 1}
            ),
            commands.Queue.Bind(queue="r", exchange="deep", routing_key="", arguments={"other": 1}),
        ]
        session.receive(b"".join(map(frame, setup)), 0)
        bound = bind(queue="r", arguments={"team": "blue"})
        unbound = commands.Queue.Unbind(
            queue="r", exchange="amq.headers", routing_key="", arguments={"team": "blue"}
        )
        is_bound = False
        for number, (headers, key, changes) in enumerate(messages):
            if changes:
                session.receive(frame(unbound if is_bound else bound), 0)
                is_bound = not is_bound
            if not at_once:
                session.publisher.forget()
            one = publish(b"%d" % number, key, "amq.headers", headers=headers)
            session.receive(b"".join(one), 0)
        node.flush(session)
        return {name: [body for _, _, body in found] for name, found in node.messages().items()}

    assert stored(at_once=True) == stored(at_once=False)


def test_the_destinations_that_are_known_by_headers_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.session.amqp091.publishing.ROUTES_MAX", 8)
    node, session = broker()
    session.receive(
        frame(
            commands.Queue.Bind(
                queue="q", exchange="amq.headers", routing_key="", arguments={"n": 1, "x-match": "any"}
            )
        ),
        0,
    )
    for number in range(100):
        session.receive(b"".join(publish(b"body", "", "amq.headers", headers={"n": number % 30})), 0)
        assert node.broker.known_routes <= 3 * 8
    session.publisher.forget()
    assert node.broker.known_routes == 0
