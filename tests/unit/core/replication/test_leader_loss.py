"""What becomes of a queue whose leader's node is lost."""

from __future__ import annotations

import pytest

from leveret.core.replication.leader_loss import DELETED, PROMOTED, WAITS, fate_alone, fate_in_cluster
from leveret.core.replication.placement import QueuePlacement
from leveret.core.rules.mirror_policy import MAJORITY, WHEN_SYNCED, MirrorPolicy

ALONE = QueuePlacement("a")
IN_STEP = QueuePlacement("a", ("b",), ("b",), ("b",), is_mirrored=True)
BEHIND = QueuePlacement("a", ("b",), (), ("b",), is_mirrored=True)
OF_THREE = QueuePlacement("a", ("b", "c"), ("b", "c"), ("b", "c"), is_mirrored=True)
ONE_AWAY = QueuePlacement("a", ("b",), ("b",), ("b", "c"), is_mirrored=True)
CAREFUL = MirrorPolicy(mode="all", promote_on_failure=WHEN_SYNCED)
GROUP = MirrorPolicy(mode="exactly", confirm=MAJORITY)


@pytest.mark.parametrize(
    ("placed", "policy", "durable", "exclusive", "fate"),
    [
        (ALONE, MirrorPolicy(), True, False, WAITS),
        (ALONE, MirrorPolicy(), False, False, DELETED),
        (ALONE, MirrorPolicy(mode="all"), False, False, DELETED),
        (ALONE, MirrorPolicy(mode="all"), True, True, DELETED),
        (IN_STEP, CAREFUL, True, False, PROMOTED),
        (BEHIND, CAREFUL, True, False, WAITS),
        (BEHIND, MirrorPolicy(mode="all"), True, False, PROMOTED),
        (OF_THREE, GROUP, True, False, PROMOTED),
        (ONE_AWAY, GROUP, True, False, WAITS),
        (ALONE, GROUP, True, False, WAITS),
    ],
)
def test_a_queue_is_promoted_waits_or_is_deleted(
    placed: QueuePlacement, policy: MirrorPolicy, durable: bool, exclusive: bool, fate: str
) -> None:
    assert fate_in_cluster(placed, policy, durable=durable, is_exclusive=exclusive) == fate


@pytest.mark.parametrize(
    ("durable", "exclusive", "followed", "fate"),
    [
        (True, False, True, PROMOTED),
        (True, False, False, WAITS),
        (False, False, True, DELETED),
        (True, True, True, DELETED),
    ],
)
def test_a_follower_is_promoted_with_durable_queues(
    durable: bool, exclusive: bool, followed: bool, fate: str
) -> None:
    assert fate_alone(durable=durable, is_exclusive=exclusive, is_followed=followed) == fate
