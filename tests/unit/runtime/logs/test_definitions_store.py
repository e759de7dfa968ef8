"""runtime.logs.definitions_store: the definitions are what their log of changes says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.broker.broker import Broker
from leveret.model import definitions as d
from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.logs import definitions_store as store_module
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.definitions_store import DefinitionsStore
from leveret.storage.log import Log
from leveret.wire.chunk import encode_entry
from tests.unit.memory import scratch

NAME = st.sampled_from(["a", "b", "c"])
ARGUMENTS: st.SearchStrategy[d.Arguments] = st.sampled_from([{}, {"x": [1, None]}])
CHANGE: st.SearchStrategy[d.Change] = st.one_of(
    st.builds(d.Queue, name=NAME, vhost=st.just("v"), epoch=st.integers(1, 9)).map(d.Put),
    st.builds(d.GlobalParameter, name=NAME, value=st.one_of(st.integers(0, 9), st.text(max_size=5))).map(d.Put),
    st.builds(d.Binding, source=NAME, vhost=st.just("v"), destination=NAME, arguments=ARGUMENTS).map(d.Put),
    NAME.map(lambda name: d.Delete("queues", ("v", name))),
)  # fmt: skip


def opened(directory: Path) -> DefinitionsStore:
    def fail(error: BaseException) -> None:
        raise AssertionError(error)

    return DefinitionsStore(Log(directory, epoch=1), GroupCommit(fsync=True, on_failure=fail), lambda: 7)


def put(name: str, value: object = 1) -> d.Put:
    return d.Put(d.GlobalParameter(name=name, value=value))


@given(st.lists(st.lists(CHANGE, max_size=5), max_size=6))
def test_after_a_restart_the_definitions_are_the_changes_applied_in_order(
    batches: list[list[d.Change]],
) -> None:
    expected = d.Definitions()
    with scratch() as directory:
        store = opened(directory / "definitions")
        for batch in batches:
            if batch:
                store.append(batch)
            for change in batch:
                expected.apply(change)
        store.close()
        again = opened(directory / "definitions")
        assert again.definitions.by_kind == expected.by_kind
        assert again.next_offset == sum(map(len, batches))
        puts = [change.entity for batch in batches for change in batch if isinstance(change, d.Put)]
        assert list(again.former_queues()) == [entity for entity in puts if isinstance(entity, d.Queue)]
        again.close()


def test_more_changes_than_fit_a_chunk_make_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "ENTRIES_MAX", 3)
    store = opened(tmp_path)
    store.append([put(str(number)) for number in range(8)])
    store.close()
    again = opened(tmp_path)
    assert len(again.definitions.by_kind["global_parameters"]) == 8
    assert [chunk.header.records for chunk in again._log.read(0, 1 << 20)] == [3, 3, 2]
    again.close()


def test_a_definition_that_is_not_restored_is_named_without_its_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    value = {"src-uri": "amqp://u:hidden@h", "password": "hidden"}
    of_a_plugin = d.Parameter(vhost="v", component="shovel", name="s", value=value)
    store.append([d.Put(d.Vhost(name="v")), d.Put(of_a_plugin)])
    broker = Broker(lambda queue, offset: [])
    store.restore(broker)
    assert list(broker.topologies) == ["v"]
    assert "definition_not_restored change=put parameters v/shovel/s" in caplog.text
    assert "hidden" not in caplog.text
    store.close()


async def test_changes_are_durable_with_the_next_group_commit(tmp_path: Path) -> None:
    commit = GroupCommit(fsync=True, on_failure=lambda error: None)
    store = DefinitionsStore(Log(tmp_path, epoch=1), commit, lambda: 7)
    store.append([put("a")])
    await commit.all_durable()
    assert (commit.rounds, store._log.unsynced()) == (1, [])
    commit.close()


def test_an_unfinished_change_is_cut_and_damage_before_it_is_told(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append([put("a")])
    store.append([put("b")])
    store.close()
    (segment,) = tmp_path.iterdir()
    octets = segment.read_bytes()
    segment.write_bytes(octets[:-1])
    again = opened(tmp_path)
    assert [key for key in again.definitions.by_kind["global_parameters"]] == [("a",)]
    again.close()
    damaged = bytearray(octets)
    damaged[60] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(Corrupt, match="offset 0") as caught:
        opened(tmp_path)
    assert caught.value.log == str(tmp_path)
    assert segment.read_bytes() == damaged


@pytest.mark.parametrize(
    "record", [b"not json", b'{"put": "planets", "value": {}}', b'{"delete": "planets"}', b"{}"]
)
def test_a_record_that_is_no_change_names_its_place(tmp_path: Path, record: bytes) -> None:
    log = Log(tmp_path, epoch=1).open()
    good = encode_entry(d.encode_change(put("a")))
    log.append(0, 2, 2, good + encode_entry(record), 0)
    log.close()
    with pytest.raises(Corrupt, match="not a change of a definition") as caught:
        opened(tmp_path)
    assert (caught.value.log, caught.value.offset) == (str(tmp_path), 1)


def test_a_full_disk_refuses_the_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)

    def refuse(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwritev", refuse)
        with pytest.raises(StorageError, match="No space left"):
            store.append([put("a")])
    store.append([put("b")])
    store.close()
    again = opened(tmp_path)
    assert list(again.definitions.by_kind["global_parameters"]) == [("b",)]
    again.close()
