"""Downstreams of one upstream that have the same cluster name: their positions are kept apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.core.schema.delta import STANDBY_UPSTREAM
from leveret.model import definitions as d
from leveret.model.errors import PreconditionFailed, StorageError
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.wire.record import BEGINNING_PREFIX, downstream_reference
from tests.unit.runtime.collecting.site import TAGGED, Site, replicating, served

pytestmark = pytest.mark.usefixtures("collection")

UPSTREAM = {"endpoints": ["127.0.0.1:1"], "username": "standby", "password": "secret"}


def make(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    return directory


async def downstream(directory: Path) -> Site:
    """A node with the default name that is to follow an upstream."""
    site = await Site.started(make(directory))
    await site.apply(d.Put(TAGGED), d.Put(d.GlobalParameter(name=STANDBY_UPSTREAM, value=UPSTREAM)))
    return site


def reference_of(site: Site) -> str:
    """The reference under which the transfer of a downstream reports its position."""
    job, error = site.node.standby._job()
    assert job is not None, error
    return str(job["reference"])


async def collecting(directory: Path) -> tuple[Site, OutgoingLog]:
    """An upstream with 80 collected messages."""
    site = await replicating(make(directory), "q")
    await site.publish_often(20, 4)
    return site, await served(site)


def advance(site: Site, reference: str, offset: int) -> None:
    site.node.stream_server.store_offset("v", reference, offset)


async def test_the_upstream_keeps_what_the_slower_of_two_downstreams_with_one_name_lacks(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = await downstream(directory / "one"), await downstream(directory / "other")
    assert one.node.config.cluster_name == other.node.config.cluster_name
    name, fast, slow = one.node.config.cluster_name, reference_of(one), reference_of(other)
    site, log = await collecting(directory / "upstream")
    collector, upstream = site.node.collector, site.node.upstream
    collector._truncates = True
    for offset in (20, 60):
        advance(site, slow, 20)
        advance(site, fast, offset)
    await collector.retain()
    assert 0 < log.first_offset <= 20, "the slower one still needs the rest"
    assert {row["downstream"]: row["transferred"] for row in upstream.downstreams()} == {fast: 60, slow: 20}
    assert site.node.stream_server.query_offset("v", slow) == 20
    told = [line for line in caplog.messages if "downstream_name_used_twice" in line]
    assert len(told) == 1
    assert name in told[0]
    assert fast in told[0]
    assert slow in told[0]
    with pytest.raises(PreconditionFailed, match="several downstreams are called") as refused:
        upstream.forget_downstream(name)
    assert fast in str(refused.value)
    assert upstream.forget_downstream(slow)
    assert [row["downstream"] for row in upstream.downstreams()] == [name], "one name suffices again"
    await collector.retain()
    assert 20 < log.first_offset <= 60
    for each in (one, other, site):
        await each.kill()


async def test_nothing_is_collected_anew_for_a_downstream_if_its_namesake_lags(directory: Path) -> None:
    fast, slow = downstream_reference("eu.2", "a1"), downstream_reference("eu.2", "b2")
    site, log = await collecting(directory / "upstream")
    site.node.collector._retain_bytes_max = 800
    advance(site, slow, 60)
    await site.node.collector.retain()
    site.node.collector._retain_bytes_max = 1 << 20
    first = log.first_offset
    assert log.missing_messages > 0
    assert site.node.stream_server.query_offset("v", BEGINNING_PREFIX + fast) == first
    advance(site, slow, log.committed_offset)
    assert site.node.stream_server.query_offset("v", BEGINNING_PREFIX + fast) == 80, "that one has it all"


async def test_a_downstream_that_is_renamed_leaves_no_position_of_its_former_name_behind(
    directory: Path,
) -> None:
    site, log = await collecting(directory / "upstream")
    for reference, offset in (("eu.2", 30), ("eu.2#a1", 40), ("eu.3#a1", 50), ("eu.3#b2", 10)):
        advance(site, reference, offset)
    assert log.downstreams.by_reference.keys() == {"eu.3#a1", "eu.3#b2"}
    await site.node.collector.retain()
    await site.restart()
    rows = site.node.upstream.downstreams()
    assert {row["downstream"]: row["transferred"] for row in rows} == {"eu.3#a1": 50, "eu.3#b2": 10}


async def test_a_downstream_keeps_its_id_and_tells_none_that_a_disk_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(content: object) -> None:
        raise StorageError("no space left on device")

    site = await downstream(directory / "one")
    standby = site.node.standby
    with monkeypatch.context() as full:
        full.setattr(standby.decided._state_file, "save", refuse)
        assert standby._job() == (None, "no space left on device")
        assert standby.decided.downstream_id == ""
    reference = reference_of(site)
    await site.kill()
    site = await downstream(directory / "one")
    assert reference_of(site) == reference
