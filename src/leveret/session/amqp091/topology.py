"""exchange.* and queue.* methods: from AMQP's arguments to operations of the broker, and to replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pamqp import base, commands

from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.rules.validation import NESTING_MAX, declared_name
from leveret.model import definitions as d
from leveret.model.errors import AccessRefused, NotFound, PreconditionFailed
from leveret.session.amqp091 import remote_methods
from leveret.session.amqp091.channel_base import ChannelBase
from leveret.session.amqp091.direct_reply import PREFIX, REPLY_TO
from leveret.session.amqp091.settling import answered_at_end
from leveret.wire import amqp091 as wire

_COUNT_MAX: Final = 2**32 - 1
"""The largest count of messages that an answer can carry; a stream may have more."""


def _arguments(table: Any, depth: int = 0) -> d.Arguments:
    """A field table in the form of definitions: JSON's types."""
    return {str(key): _plain(value, depth) for key, value in (table or {}).items()}


def _plain(value: Any, depth: int) -> Any:
    if depth > NESTING_MAX:
        raise PreconditionFailed(f"arguments are nested more than {NESTING_MAX} levels deep")
    match value:
        case dict():
            return _arguments(value, depth + 1)
        case list():
            return [_plain(item, depth + 1) for item in value]
    return d.as_argument(value)


def _vhost(channel: ChannelBase) -> str:
    return channel.connection.vhost or ""


def _hold(channel: ChannelBase) -> None:
    """Make replies wait for the definitions log, so that a declared entity survives every later event."""
    broker = channel.connection.broker
    if broker.changes or broker.shared or broker.changes_in_flight:
        channel.connection.waits_for_definitions = True


def _exchange_declare(channel: ChannelBase, method: commands.Exchange.Declare) -> None:
    vhost, name = _vhost(channel), declared_name(method.exchange)
    if method.passive:
        if name == "":
            raise AccessRefused("operation not permitted on the default exchange")
        channel.connection.broker.exchange(vhost, name)
    else:
        wanted = d.Exchange(
            name=name,
            vhost=vhost,
            type=method.exchange_type,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=_arguments(method.arguments),
        )
        channel.connection.actor.declare_exchange(wanted)
        _hold(channel)
    if not method.nowait:
        channel.reply(commands.Exchange.DeclareOk())


def _exchange_delete(channel: ChannelBase, method: commands.Exchange.Delete) -> None:
    if channel.waiting_notices is None:
        with _in_turns(channel) as gone:
            channel.connection.actor.delete_exchange_in_turns(
                declared_name(method.exchange), gone, if_unused=method.if_unused
            )
        if channel.connection.awaits_answer:
            return
    notices, channel.waiting_notices = channel.waiting_notices, None
    _hold(channel)
    if not method.nowait:
        channel.reply(commands.Exchange.DeleteOk())
    for notice in notices or ():
        channel.connection.send(notice)


def _exchange_bind(channel: ChannelBase, method: commands.Exchange.Bind | commands.Exchange.Unbind) -> None:
    binding = d.Binding(
        source=declared_name(method.source),
        vhost=_vhost(channel),
        destination=declared_name(method.destination),
        destination_type="exchange",
        routing_key=method.routing_key,
        arguments=_arguments(method.arguments),
    )
    add = isinstance(method, commands.Exchange.Bind)
    _change_binding(channel, binding, add=add)
    if not method.nowait:
        channel.reply(commands.Exchange.BindOk() if add else commands.Exchange.UnbindOk())


def _change_binding(channel: ChannelBase, binding: d.Binding, *, add: bool) -> None:
    """Bind or unbind."""
    actor = channel.connection.actor
    (actor.bind if add else actor.unbind)(binding)
    _hold(channel)


def _queue_declare(channel: ChannelBase, method: commands.Queue.Declare) -> None:
    connection = channel.connection
    vhost = _vhost(channel)
    name = declared_name(method.queue) or f"amq.gen-{connection.host.unique_id()}"
    if method.queue == REPLY_TO or method.queue.startswith(PREFIX):
        _declare_replies(channel, method)
        return
    channel.await_returns(name)
    is_new = (vhost, name) not in connection.broker.queues
    if method.passive:
        # Here an empty name is no word for the queue that was declared last.
        if not declared_name(method.queue):
            raise NotFound(f"no queue '' in vhost '{vhost}'")
        queue = channel.queue(name)
    else:
        queue = _declare(channel, method, name, vhost)
        _hold(channel)
    channel.last_queue = queue.key[1]
    if isinstance(queue, RemoteQueue) and not is_new:
        remote_methods.declare(channel, queue, nowait=method.nowait)
        return
    queue.touch()
    channel.mark(queue)
    if not method.nowait:
        count = min(queue.ready_count, _COUNT_MAX)
        connection.send(wire.declare_ok(channel.number, queue.name_octets, count, queue.consumer_count))


def _declare_replies(channel: ChannelBase, method: commands.Queue.Declare) -> None:
    """Declare the pseudo-queue of direct replies, which exists, or a reply name, which exists while its client does."""
    broker, name = channel.connection.broker, method.queue
    if name != REPLY_TO and name not in broker.direct_replies:
        leaders = channel.leaders
        if leaders is None or leaders.direct_reply(_vhost(channel), name) is None:
            raise NotFound(f"no queue '{name}' in vhost '{_vhost(channel)}'")
    if not method.nowait:
        channel.connection.send(wire.declare_ok(channel.number, name.encode(), 0, 1))


def _declare(channel: ChannelBase, method: commands.Queue.Declare, name: str, vhost: str) -> Queue:
    wanted = d.Queue(
        name=name,
        vhost=vhost,
        durable=method.durable and not method.exclusive,
        auto_delete=method.auto_delete,
        arguments=_arguments(method.arguments),
    )
    channel.connection.actor.declare_queue(
        wanted, exclusive=method.exclusive, is_server_named=not declared_name(method.queue)
    )
    return channel.queue(name)


def _queue_bind(channel: ChannelBase, method: commands.Queue.Bind | commands.Queue.Unbind) -> None:
    name = declared_name(method.queue) or channel.queue("").key[1]
    binding = d.Binding(
        source=declared_name(method.exchange),
        vhost=_vhost(channel),
        destination=name,
        routing_key=method.routing_key or ("" if method.queue else name),
        arguments=_arguments(method.arguments),
    )
    channel.await_returns(name)
    _change_binding(channel, binding, add=isinstance(method, commands.Queue.Bind))
    if isinstance(method, commands.Queue.Unbind):
        channel.reply(commands.Queue.UnbindOk())
    elif not method.nowait:
        channel.reply(commands.Queue.BindOk())


def _queue_purge(channel: ChannelBase, method: commands.Queue.Purge) -> None:
    queue = channel.readable_queue(method.queue)
    if isinstance(queue, RemoteQueue):
        remote_methods.purge(channel, queue, nowait=method.nowait)
        return

    def purged(count: int, refused: PreconditionFailed | None) -> None:
        if refused is not None and not channel.is_closing:
            channel.connection.fail(refused, channel.number, method.index)
        elif not method.nowait and not channel.is_closing:
            channel.reply(commands.Queue.PurgeOk(min(count, _COUNT_MAX)))
        done()

    # What follows is answered after it.
    with answered_at_end(channel.connection) as done:
        channel.connection.actor.purge_safely(queue, purged)


def _queue_delete(channel: ChannelBase, method: commands.Queue.Delete) -> None:
    if channel.waiting_notices is None and not _has_deleted(channel, method):
        return
    notices, channel.waiting_notices = channel.waiting_notices, None
    count, channel.deleted_count = channel.deleted_count, 0
    _hold(channel)
    if not method.nowait:
        channel.reply(commands.Queue.DeleteOk(min(count, _COUNT_MAX)))
    for notice in notices or ():
        channel.connection.send(notice)


def _has_deleted(channel: ChannelBase, method: commands.Queue.Delete) -> bool:
    """Delete a queue; return whether it is gone, otherwise the answer follows later."""
    broker, name = channel.connection.broker, declared_name(method.queue)
    channel.connection.actor.require("configure", "queue", name or channel.last_queue)
    if name and broker.find_queue((_vhost(channel), name)) is None:
        return True
    queue = channel.queue(name)
    if isinstance(queue, RemoteQueue) and queue.is_down:
        _check_unconditional(queue, method)
    elif isinstance(queue, RemoteQueue):
        remote_methods.delete(channel, queue, method)
        return False
    with _in_turns(channel) as gone:

        def deleted(count: int) -> None:
            channel.deleted_count = count
            gone()

        channel.connection.actor.delete_queue_in_turns(
            queue, deleted, if_unused=method.if_unused, if_empty=method.if_empty
        )
    return not channel.connection.awaits_answer


@contextmanager
def _in_turns(channel: ChannelBase) -> Iterator[Callable[[], None]]:
    """Yield a function that reports the end of a deletion; until it is called, the connection takes no frames.

    Then the connection processes the method again, and only its answer is left to do: what has the name by then is
    new. As in RabbitMQ, a consumer of the same channel gets its cancel after the delete-ok, because a client that waits
    for delete-ok would take a cancel before it for an error.
    """
    is_here, is_gone = True, False

    def gone() -> None:
        nonlocal is_gone
        is_gone = True
        if not is_here:
            channel.connection.repeat()

    channel.waiting_notices = []
    try:
        yield gone
    except BaseException:
        channel.waiting_notices = None
        raise
    is_here = False
    if not is_gone:
        channel.connection.ask()


def _check_unconditional(queue: RemoteQueue, method: commands.Queue.Delete) -> None:
    """Refuse conditions for a queue without a leader, as RabbitMQ does, because its content is unknown.

    Raises:
        PreconditionFailed: the method has a condition.
    """
    vhost, name = queue.key
    if method.if_unused:
        raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' in use")
    if method.if_empty:
        raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' not empty")


TOPOLOGY: Final[dict[type[base.Frame], Callable[[ChannelBase, Any], None]]] = {
    commands.Exchange.Declare: _exchange_declare,
    commands.Exchange.Delete: _exchange_delete,
    commands.Exchange.Bind: _exchange_bind,
    commands.Exchange.Unbind: _exchange_bind,
    commands.Queue.Declare: _queue_declare,
    commands.Queue.Bind: _queue_bind,
    commands.Queue.Unbind: _queue_bind,
    commands.Queue.Purge: _queue_purge,
    commands.Queue.Delete: _queue_delete,
}
