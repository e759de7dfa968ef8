"""session.amqp091.topology: the answers to declarations and deletions."""

from __future__ import annotations

from pamqp import commands

from leveret.core.queues.stream import EmptyLog, Stream
from tests.unit.session.amqp091.fakes import FakeNode, connect, frame, take


class _LongLog(EmptyLog):
    committed_offset = end_offset = 2**40


def test_a_stream_with_more_messages_than_a_count_can_say_is_declared_and_deleted() -> None:
    node = FakeNode()
    session = connect(node, 1)
    declare = commands.Queue.Declare(queue="s", durable=True, arguments={"x-queue-type": "stream"})
    session.receive(frame(declare), 0)
    stream = node.queue("s")
    assert isinstance(stream, Stream)
    stream.log = _LongLog()
    take(session)
    session.receive(frame(declare) + frame(commands.Queue.Delete(queue="s")), 0)
    answers = [(value.name, value.message_count) for _, value in take(session)]
    assert answers == [("Queue.DeclareOk", 2**32 - 1), ("Queue.DeleteOk", 2**32 - 1)]


def test_a_passive_declare_without_a_name_is_of_no_queue_also_after_a_declare() -> None:
    node = FakeNode()
    session = connect(node, 1)
    session.receive(frame(commands.Queue.Declare(queue="q")), 0)
    session.receive(frame(commands.Queue.Declare(queue="", passive=True)), 0)
    *_, (_, closed) = take(session)
    assert (closed.reply_code, closed.reply_text) == (404, "NOT_FOUND - no queue '' in vhost '/'")
