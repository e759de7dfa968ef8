from __future__ import annotations

import pytest

from leveret.model.errors import StorageError
from leveret.pipeline.archive.origins import ORIGINS, AnotherLog, Origins
from leveret.pipeline.files.files import Place


def test_the_log_that_data_came_from_is_told_from_every_other_one(data_dir: Place) -> None:
    origins = Origins(data_dir / "standby")
    origins.check("v", 5, has_data=False)
    origins.check("v", 6, has_data=False)
    origins.check("v", 6, has_data=True)
    with pytest.raises(AnotherLog, match="delete_orphaned_data_on_standby_replication_downstream_cluster"):
        origins.check("v", 7, has_data=True)
    again = Origins(data_dir / "standby")
    assert again.by_vhost["v"].is_replaced
    again.check("v", 6, has_data=True)
    assert not Origins(data_dir / "standby").by_vhost["v"].is_replaced, "the upstream is the old one again"
    again.forget(["v", "w"])
    Origins(data_dir / "standby").check("v", 7, has_data=True)


def test_data_from_before_logs_had_names_takes_the_name_that_is_told(data_dir: Place) -> None:
    origins = Origins(data_dir)
    origins.check("v", 5, has_data=True)
    with pytest.raises(AnotherLog):
        origins.check("v", 6, has_data=True)


def test_what_is_missing_is_remembered_until_it_is_not(data_dir: Place) -> None:
    origins = Origins(data_dir)
    origins.note_missing("v", 20)
    assert Origins(data_dir).by_vhost["v"].missing == 20
    origins.note_missing("v", 0)
    assert Origins(data_dir).by_vhost["v"].missing == 0
    origins.note_missing_messages("v", 9)
    origins.note_missing("v", 3)
    assert Origins(data_dir).missing_messages("v") == 9
    origins.note_missing_messages("v", 0)
    assert (Origins(data_dir).missing_messages("v"), Origins(data_dir).missing_messages("w")) == (0, 0)


def test_since_when_history_is_whole_is_remembered_until_the_transfer_begins_anew(data_dir: Place) -> None:
    Origins(data_dir).note_begin("v", 5, is_whole=False)
    assert Origins(data_dir).history_from_ms("v") == 5
    Origins(data_dir).note_begin("v", 9, is_whole=True)
    assert (Origins(data_dir).history_from_ms("v"), Origins(data_dir).history_from_ms("w")) == (0, 0)


def test_a_damaged_file_says_what_to_do(data_dir: Place) -> None:
    (data_dir / ORIGINS).write_bytes(b"{")
    with pytest.raises(StorageError, match="remove it"):
        Origins(data_dir)
