"""The file with what an operator decided on a standby, when it cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.errors import StorageError
from leveret.runtime.schema_sync.decisions import NodeSchemaDecisions
from leveret.runtime.standby.decisions import StandbyDecided
from leveret.storage.state_file import StateFile


@pytest.mark.parametrize(
    ("read", "setting"),
    [
        (lambda file: StandbyDecided(file, OperatingMode.DOWNSTREAM), "standby.replication.operating_mode"),
        (lambda file: NodeSchemaDecisions(file, "n"), "schema_definition_sync.operating_mode"),
    ],
)
def test_an_operator_is_not_told_to_have_a_promoted_site_follow_again(
    tmp_path: Path, read: Callable[[StateFile], object], setting: str
) -> None:
    """The file was to be removed, "to start from the configuration", which says that it is a downstream."""
    file = StateFile(tmp_path / "it.json")
    file.save({"operating_mode": "upstream"})
    whole = file.path.read_bytes()
    for octets in (whole.replace(b"upstream", b"upstreaL"), whole[:-3]):
        file.path.write_bytes(octets)
        with pytest.raises(StorageError, match=r"repair the file, .*or restore it from a copy; ") as caught:
            read(file)
        assert str(caught.value).endswith(
            f"otherwise set {setting} to this site's mode, which is upstream if it was promoted, and remove the file "
            "after that: without both a promoted site would follow its former upstream"
        )
