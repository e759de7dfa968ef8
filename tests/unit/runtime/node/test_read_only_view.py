"""The view of a follower, in which nothing of a leader's records may take long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leveret.config import load
from leveret.model import definitions as d
from leveret.runtime.node import read_only_view
from leveret.runtime.node.node import Node
from leveret.storage.log import Log
from leveret.storage.tree import Tree
from leveret.testing.network.waiting import until
from leveret.wire.chunk import decode_chunk
from tests.unit.runtime.collecting.site import Site


async def test_a_log_that_came_before_the_definition_of_its_queue_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a follower that catches up: a queue that is declared meanwhile has its turn before its definition."""

    asked: list[int] = []
    read = Log.read

    def noted(log: Any, offset: int, bytes_max: int, **options: Any) -> Any:
        asked.append(bytes_max)
        return read(log, offset, bytes_max, **options)

    leader = await Site.started(tmp_path / "leader")
    await leader.apply(d.Put(d.Vhost(name="v")), d.Put(d.Queue(vhost="v", name="q")))
    await leader.publish(200, "q")
    monkeypatch.setattr(read_only_view, "_PART_BYTES", 1000)
    monkeypatch.setattr(Log, "read", noted)
    node = Node(load(None, {}), tmp_path / "follower", tree=Tree(tmp_path / "follower"))
    node.show(lambda: None)
    view, names = node.read_only_view, sorted(leader.node.tree.logs, key="definitions".__eq__)
    assert names[1:] == ["definitions"]
    for name in names:
        for segment, header, octets in list(leader.node.tree.logs[name].read_segments(0, 1 << 30)):
            log = node.tree.logs.get(name) or node.tree.log(node.tree.path_of(name)).open()
            log.append_raw(header, octets, segment)
            view.replayed(name, log, decode_chunk(octets))
    await until(lambda: ("v", "q") in node.broker.queues)
    await until(lambda: node.broker.queues["v", "q"].message_count == 200)
    assert max(asked) <= 1000
    node.close()


async def test_at_the_end_of_a_join_queues_are_read_in_turns_of_the_loop_and_each_record_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 queues were one step of 0.7 s, and the leader's confirms waited for the acks of this node."""
    leader = await Site.started(tmp_path / "leader")
    names = [f"q{number}" for number in range(6)]
    await leader.apply(d.Put(d.Vhost(name="v")), *(d.Put(d.Queue(vhost="v", name=name)) for name in names))
    for name in names:
        await leader.publish(3, name)
    node = Node(load(None, {}), tmp_path / "follower", tree=Tree(tmp_path / "follower"))
    view, sent = node.read_only_view, dict[str, int]()

    def receive(view: read_only_view.ReadOnlyView | None) -> None:
        """All that the leader has by now; `definitions` come last, as in a flush."""
        for name in sorted(leader.node.tree.logs, key="definitions".__eq__):
            log = node.tree.logs.get(name) or node.tree.log(node.tree.path_of(name)).open()
            for segment, header, octets in list(
                leader.node.tree.logs[name].read_segments(sent.get(name, 0), 1 << 30)
            ):
                if header.chunk_id >= sent.get(name, 0):
                    log.append_raw(header, octets, segment)
                    sent[name] = header.next_offset
                    if view is not None:
                        view.replayed(name, log, decode_chunk(octets))

    receive(None)
    node = Node(load(None, {}), node.data_dir, tree=node.tree)
    view = node.read_only_view
    monkeypatch.setattr(read_only_view, "_BEGIN_S", 0.0)
    node.show(lambda: None, in_turns=True)
    shown = node.broker.queues
    assert sorted(queue.message_count for queue in shown.values()) == [0, 0, 0, 0, 0, 3], "one at once"
    for name in names:
        await leader.publish(2, name)
    await leader.apply(d.Delete("queues", ("v", "q5")), d.Put(d.Queue(vhost="v", name="new")))
    await leader.publish(1, "new")
    receive(view)
    await until(lambda: all(shown["v", name].message_count == 5 for name in names[:5]))
    assert shown["v", "new"].message_count == 1
    assert len(shown) == 6
    view.close()
    node.close()
    await leader.stop()
