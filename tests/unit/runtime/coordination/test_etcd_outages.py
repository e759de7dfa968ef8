"""What the log says of an etcd that does not answer."""

from __future__ import annotations

import logging

import pytest

from leveret.runtime.coordination.etcd_outages import REMIND_S, EtcdOutages


def test_two_ways_to_fail_in_turn_are_told_once_each_and_again_after_a_while_or_a_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    outages = EtcdOutages(logging.getLogger("test"), lambda: now_s)
    caplog.set_level(logging.INFO)

    def try_for(seconds: float) -> list[str]:
        nonlocal now_s
        caplog.clear()
        until_s = now_s + seconds
        while now_s < until_s:
            outages.failed("etcd_unreachable", "no answer")
            outages.failed("etcd_unreachable", "connection refused")
            outages.failed("cluster_not_entered", "no answer")
            now_s += 0.1
        return [each.getMessage() for each in caplog.records]

    told = try_for(REMIND_S - 1)
    assert told == [
        "etcd_unreachable error=no answer action=retry",
        "etcd_unreachable error=connection refused action=retry",
        "cluster_not_entered error=no answer action=retry",
    ]
    assert try_for(2) == told
    caplog.clear()
    outages.reached("http://a:2379")
    outages.reached("http://a:2379")
    assert [each.getMessage() for each in caplog.records] == ["etcd_reached endpoint=http://a:2379"]
    assert try_for(1) == told
