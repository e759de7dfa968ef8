"""Places of an archive."""

from __future__ import annotations

import pytest

from leveret.model.store_uri import has_credentials


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("/srv/a@b", False),
        ("s3://bucket/a", False),
        ("s3://key@bucket", True),
        ("s3://key:x@bucket", True),
        ("abfss://box@account.dfs.core.windows.net/a", False),
        ("abfss://box:x@account.dfs.core.windows.net/a", True),
        ("hdfs://me@host/a", True),
    ],
)
def test_credentials_are_told_from_containers_and_paths(text: str, has: bool) -> None:
    assert has_credentials(text) is has
