"""The engine's port to other nodes: publishers wait for mirrors that have much to receive."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.runtime.cluster.replication_port import _WAITING_BYTES_MAX, ClusterPort
from tests.unit.core.broker.test_broker import no_read

NOTHING: Any = None


class Forwarding:
    """Forwarding to leaders that keep up."""

    def is_overloaded(self) -> bool:
        return False

    def when_relieved(self, callback: Callable[[], None]) -> None:
        callback()


@pytest.mark.parametrize("waits_for_mirrors", [True, False])
def test_publishers_wait_for_a_slow_mirror_until_it_has_caught_up(waits_for_mirrors: bool) -> None:
    sources = SimpleNamespace(waiting_bytes=_WAITING_BYTES_MAX + 1)
    port = ClusterPort(
        lambda: True,
        NOTHING,
        sources,  # type: ignore[arg-type]  # a stand-in
        Forwarding(),  # type: ignore[arg-type]  # a stand-in
        NOTHING,
        NOTHING,
        NOTHING,
        waits_for_mirrors=waits_for_mirrors,
    )
    assert port.is_overloaded() == waits_for_mirrors
    relieved: list[str] = []
    port.when_relieved(lambda: relieved.append("go on"))
    port.tick()
    assert relieved == ([] if waits_for_mirrors else ["go on"])
    sources.waiting_bytes = _WAITING_BYTES_MAX
    assert not port.is_overloaded()
    port.tick()
    assert relieved == ["go on"]


@pytest.mark.parametrize("has_lease", [True, False])
@pytest.mark.parametrize("ok", [True, False])
def test_whoever_waits_for_mirrors_is_told_that_they_never_will_have_it_unless_the_lease_is_lost(
    ok: bool, has_lease: bool
) -> None:
    """Confirms come in order: without an answer a channel would never get another one."""
    acks: list[Callable[[bool], None]] = []
    port = ClusterPort(
        lambda: has_lease,
        SimpleNamespace(led_name=lambda queue: "queues/1"),  # type: ignore[arg-type]  # a stand-in
        SimpleNamespace(when_acked=lambda names, acked: acks.append(acked)),  # type: ignore[arg-type]  # another
        NOTHING,
        NOTHING,
        NOTHING,
        NOTHING,
        waits_for_mirrors=True,
    )
    answers: list[bool] = []
    port.when_taken([Queue(d.Queue(vhost="/", name="q", epoch=1), no_read)], lambda: answers.append)
    acks[0](ok)
    assert answers == ([ok] if has_lease else [])
