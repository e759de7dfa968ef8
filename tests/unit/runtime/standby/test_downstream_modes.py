"""The way from an upstream to a downstream by a command that sets the mode, and when it is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from leveret.core.replication.standby_site import PromotionAttempt
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.errors import PreconditionFailed
from leveret.pipeline.archive.identities import UpstreamIdentities
from leveret.runtime.standby.downstream import StandbyDownstream
from leveret.storage.state_file import StateFile
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.unit.runtime.standby.test_downstream_giving_way import FakeNode

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

LOG_ID = 7


def promoted(directory: Path, *, log_id: int = LOG_ID, messages: int = 3) -> StandbyDownstream:
    """A site that was promoted with these messages of this log, and has records of the log LOG_ID."""
    archive = directory / "standby"
    UpstreamIdentities(archive).check("/", LOG_ID, has_data=False)
    upstream = StandbyUpstream()
    upstream.publish("/", "q", [stored_message(b"x")])
    transfer(upstream, archive)
    promotion = PromotionAttempt(
        begun_ms=1,
        done_ms=2,
        summary=[{"virtual_host": "/", "message_count": messages}],
        transferred={"/": (log_id, 1)},
    )
    state = StateFile(directory / "standby.json")
    state.save({"operating_mode": "upstream", "promotions": [msgspec.to_builtins(promotion)]})
    return StandbyDownstream(FakeNode(directory), state)


@pytest.mark.parametrize("before", ["upstream", "none"])
async def test_a_promoted_site_does_not_follow_the_log_that_it_recovered_by_its_mode_alone(
    tmp_path: Path, before: str
) -> None:
    """The next promotion left out what the first had recovered: 50 of 80 messages were lost (2026-11-30)."""
    site = promoted(tmp_path)
    await site.set_mode(before)
    with pytest.raises(
        PreconditionFailed, match=r"vhost '/'.*rejoin_as_downstream --set-all-aside.*delete_all_data"
    ):
        await site.set_mode("downstream")
    assert site.mode is OperatingMode(before)
    assert not site.transfer.runs

    await site.delete_all_data()
    await site.set_mode("downstream")
    assert site.mode is OperatingMode.DOWNSTREAM
    await site.disconnect()


@pytest.mark.parametrize("promotion", [{"log_id": 8}, {"messages": 0}])
async def test_a_promotion_of_another_log_or_of_nothing_does_not_bind_a_site(
    tmp_path: Path, promotion: dict[str, int]
) -> None:
    site = promoted(tmp_path, **promotion)
    await site.set_mode("downstream")
    assert site.mode is OperatingMode.DOWNSTREAM
    await site.disconnect()
