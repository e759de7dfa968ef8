"""Places of an archive."""

from __future__ import annotations

import pytest

from leveret.model.store_uri import has_credentials, local_path


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


@pytest.mark.parametrize(
    "place", ["hdfs://namenode:8020/eu", "hdfs://nameservice/a b", "hdfs:///eu", "hdfs://[::1]:8020/eu/2"]
)
def test_places_in_an_hdfs_are_named_as_spark_names_them(place: str) -> None:
    assert local_path(place) is None


@pytest.mark.parametrize("place", ["hdfs://namenode", "hdfs:///", "hdfs://namenode:0/x", "hdfs://host:rpc/x"])
def test_what_is_no_place_in_an_hdfs_is_refused_with_the_forms_there_are(place: str) -> None:
    with pytest.raises(ValueError, match="hdfs://NAMESERVICE/PATH"):
        local_path(place)
