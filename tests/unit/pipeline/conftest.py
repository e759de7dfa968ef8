"""Places of archives: on this machine, and in an object store that is in memory, which takes a hundredth of the time.

That a store that speaks S3, and an HDFS, do what the one in memory does is what `files/test_objects.py` shows, and the
tests of the manifest that ask for `any_store`.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore, from_url

from leveret.pipeline.files import object_store
from leveret.pipeline.files.files import Place
from leveret.pipeline.files.objects import ObjectPath


class MemoryStores:
    """Places in memory, found as those of a store that speaks S3."""

    def __init__(self) -> None:
        self._stores: dict[str, MemoryStore] = {}

    def new_place(self) -> ObjectPath:
        """A place that is empty."""
        place = ObjectPath(f"s3://memory-{secrets.token_hex(6)}/archives/eu 2")
        self._stores[place.root] = MemoryStore()
        return place

    def from_url(self, root: str, **options: Any) -> Any:
        """As obstore's function, but for what is in memory."""
        return self._stores.get(root) or from_url(root, **options)


@pytest.fixture
def memory_store(monkeypatch: pytest.MonkeyPatch) -> MemoryStores:
    stores = MemoryStores()
    monkeypatch.setattr(object_store, "from_url", stores.from_url)
    return stores


@pytest.fixture(params=["disk", "memory"])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An archive's place on this machine, and one in an object store."""
    if request.param == "disk":
        return tmp_path
    stores: MemoryStores = request.getfixturevalue("memory_store")
    return stores.new_place()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer that asks at once what it would ask an upstream again a little later."""
    for name, seconds in {
        "transfer.source.WAIT_S": 0.1,
        "transfer.upstream_logs.MEMBERS_INTERVAL_S": 0.05,
        "upstream.link.BACKOFF_MIN_S": 0.01,
    }.items():
        monkeypatch.setattr(f"leveret.pipeline.{name}", seconds)
