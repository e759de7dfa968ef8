from __future__ import annotations

import pytest

from leveret.model.errors import StorageError
from leveret.pipeline.archive.identities import (
    UPSTREAM_IDENTITIES,
    AnotherLog,
    UpstreamIdentities,
    UpstreamIdentity,
)
from leveret.pipeline.files.files import Place
from leveret.wire.log_name import log_name


def test_the_log_that_data_came_from_is_told_from_every_other_one(data_dir: Place) -> None:
    identities = UpstreamIdentities(data_dir / "standby")
    identities.check("v", 5, has_data=False)
    identities.check("v", 6, has_data=False)
    identities.check("v", 6, has_data=True)
    with pytest.raises(AnotherLog, match="delete_orphaned_data_on_standby_replication_downstream_cluster"):
        identities.check("v", 7, has_data=True)
    again = UpstreamIdentities(data_dir / "standby")
    assert again.by_log["v"].is_replaced
    again.check("v", 6, has_data=True)
    assert not UpstreamIdentities(data_dir / "standby").by_log["v"].is_replaced, (
        "the upstream is the old one again"
    )
    again.forget(["v", "w"])
    UpstreamIdentities(data_dir / "standby").check("v", 7, has_data=True)


def test_data_from_before_logs_had_names_takes_the_name_that_is_told(data_dir: Place) -> None:
    identities = UpstreamIdentities(data_dir)
    identities.check("v", 5, has_data=True)
    with pytest.raises(AnotherLog):
        identities.check("v", 6, has_data=True)


def test_what_is_missing_is_remembered_until_it_is_not(data_dir: Place) -> None:
    identities = UpstreamIdentities(data_dir)
    identities.note_missing("v", 20)
    assert UpstreamIdentities(data_dir).by_log["v"].missing == 20
    identities.note_missing("v", 0)
    assert UpstreamIdentities(data_dir).by_log["v"].missing == 0
    identities.note_missing_messages("v", 9)
    identities.note_missing("v", 3)
    assert UpstreamIdentities(data_dir).of("v").missing_messages == 9
    identities.note_missing_messages("v", 0)
    assert (
        UpstreamIdentities(data_dir).of("v").missing_messages,
        UpstreamIdentities(data_dir).of("w").missing_messages,
    ) == (0, 0)


def test_since_when_history_is_whole_is_remembered_until_the_transfer_begins_anew(data_dir: Place) -> None:
    UpstreamIdentities(data_dir).note_begin("v", 5, is_whole=False)
    assert UpstreamIdentities(data_dir).of("v").history_from_ms == 5
    UpstreamIdentities(data_dir).note_begin("v", 9, is_whole=True)
    assert (
        UpstreamIdentities(data_dir).of("v").history_from_ms,
        UpstreamIdentities(data_dir).of("w").history_from_ms,
    ) == (0, 0)


def test_a_damaged_file_says_what_to_do(data_dir: Place) -> None:
    (data_dir / UPSTREAM_IDENTITIES).write_bytes(b"{")
    with pytest.raises(StorageError, match="remove it"):
        UpstreamIdentities(data_dir)


def test_owners_of_a_shared_archive_undo_nothing_of_each_other(data_dir: Place) -> None:
    """Each read the files before the other one wrote."""
    first, second = UpstreamIdentities(data_dir, is_shared=True), UpstreamIdentities(data_dir, is_shared=True)
    first.check("v", 5, has_data=False)
    second.check("w", 6, has_data=False)
    first.note_missing("v", 20)
    found = UpstreamIdentities(data_dir)
    assert (found.of("v").log_id, found.of("v").missing, found.of("w").log_id) == (5, 20, 6)
    found.forget(["v"])
    assert (UpstreamIdentities(data_dir).of("v").log_id, UpstreamIdentities(data_dir).of("w").log_id) == (
        0,
        6,
    )


def test_an_archive_of_one_node_that_becomes_shared_keeps_its_identities(data_dir: Place) -> None:
    UpstreamIdentities(data_dir).check("v", 5, has_data=False)
    shared = UpstreamIdentities(data_dir, is_shared=True)
    shared.note_missing("v", 3)
    assert (UpstreamIdentities(data_dir).of("v").log_id, UpstreamIdentities(data_dir).of("v").missing) == (
        5,
        3,
    )
    shared.forget(["v"])
    assert UpstreamIdentities(data_dir).by_log == {}


def test_an_archive_that_takes_a_vhost_over_takes_no_other_log_than_the_one_before(data_dir: Place) -> None:
    identities = UpstreamIdentities(data_dir)
    for _ in range(2):
        with pytest.raises(AnotherLog):
            identities.check("v", 6, has_data=False, expected=5)
    identities.check("v", 5, has_data=False, expected=5)
    assert UpstreamIdentities(data_dir).of("v") == UpstreamIdentity(log_id=5)
    with pytest.raises(AnotherLog):
        identities.check("v", 5, has_data=True, expected=4)
    assert identities.of("v").is_replaced
    identities.check("v", 5, has_data=True)
    assert not identities.of("v").is_replaced


def test_no_log_begins_beside_one_that_was_replaced(data_dir: Place) -> None:
    """A vhost that was made anew at a cluster has new logs at all nodes; not all had records before."""
    identities = UpstreamIdentities(data_dir)
    a, b = log_name("v", "a#1"), log_name("v", "b#2")
    identities.check(a, 5, has_data=True)
    identities.check_begin(b)
    with pytest.raises(AnotherLog):
        identities.check(a, 6, has_data=True)
    identities.check_begin(a)
    identities.check_begin(log_name("w", "b#2"))
    with pytest.raises(AnotherLog, match="vhost 'v' at node 'b'"):
        identities.check_begin(b)
    identities.check(a, 5, has_data=True)
    identities.check_begin(b)
