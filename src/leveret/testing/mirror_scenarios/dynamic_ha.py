"""Cases of `dynamic_ha_SUITE`: policies change, nodes come and go, and mirrors follow.

These cases make an unsynchronised mirror by adding it to a queue with messages; RabbitMQ's suite restarts a node
instead, whose mirrors then begin empty. The suite's cases of a vhost that crashed within a node have no counterpart,
because a vhost is no process here; the table of `dynamic_mirroring` is tested on
`core.replication.leader_and_mirrors` itself.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from leveret.testing.mirror_scenarios.stage import Case, Stage
from leveret.testing.sites.mirror_cluster import ClusterNode

QUEUE: Final = "ha.test"
PATTERN: Final = "^ha.test$"
LOAD: Final = 2000
RAPID: Final = 60
FIVE: Final = ("q1", "q2", "q3", "q4", "q5")

Wish = tuple[str, Any] | None
"""A policy: mode and parameters; None for no policy."""


def change_policy(stage: Stage) -> None:
    """Mirrors come, change and go with the policy; the leader moves if its node is not in it."""
    a, b, c = stage.nodes
    stage.declare(a, QUEUE)
    stage.placed(QUEUE, a, None)
    stage.mirror(PATTERN, "all")
    stage.placed(QUEUE, a, [b, c], [b, c])
    stage.mirror(PATTERN, "nodes", [a, b])
    stage.placed(QUEUE, a, [b])
    stage.mirror(PATTERN, "nodes", [a, c])
    stage.placed(QUEUE, a, [c])
    stage.unmirror()
    stage.placed(QUEUE, a, None)
    stage.mirror(PATTERN, "nodes", [b, c])
    stage.placed(QUEUE, b, [c])


def rapid_change(stage: Stage) -> None:
    """A queue is declared, used and deleted over and over while its policy comes and goes."""
    a = stage.nodes[0]
    taken: list[bytes] = []

    def use() -> None:
        with stage.cluster.channel(a, confirms=False) as channel:
            for number in range(RAPID):
                channel.queue_declare(QUEUE)
                channel.basic_publish("", QUEUE, b"%d" % number)
                for _, _, body in channel.consume(QUEUE, auto_ack=True):
                    taken.append(body)
                    break
                channel.cancel()
                channel.queue_delete(QUEUE)

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    changes = 0
    while thread.is_alive():
        stage.mirror(PATTERN, "all")
        stage.unmirror()
        changes += 1
    assert changes
    assert taken == [b"%d" % number for number in range(RAPID)]
    stage.say(f"{len(taken)} of {RAPID} came back")
    stage.queues(a, [])


def _unsynchronised(stage: Stage, policies: dict[str, dict[str, str]]) -> None:
    """Make queues `NAME.test` led by A with ten messages and an empty mirror at B, under policies `NAME`."""
    a, b, _ = stage.nodes
    for name, more in policies.items():
        queue = f"{name}.test"
        stage.declare(a, queue)
        stage.publish(a, queue, 10)
        stage.mirror(f"^{name}.test$", "nodes", [a, b], name=name, at=a, **more)
        stage.placed(queue, a, [b], [])


def force_delete_if_no_master(stage: Stage) -> None:
    """A queue that is down, because its leader was stopped without a synchronised mirror, can be deleted."""
    a, b, _ = stage.nodes
    _unsynchronised(stage, {"ha.one": {}, "ha.two": {}})
    stage.stop(a)
    stage.lacks(b, "ha.one.test", "ha.two.test")
    stage.delete(b, "ha.one.test")
    stage.delete(b, "ha.two.test", if_empty=True)
    stage.delete(b, "ha.two.test")
    stage.queues(b, [])


def promote_on_failure(stage: Stage) -> None:
    """An unsynchronised mirror leads after a failure, with the messages that it has, unless the policy forbids it."""
    a, b, _ = stage.nodes
    _unsynchronised(
        stage,
        {
            "ha.promote": {"ha_promote_on_failure": "always"},
            "ha.nopromote": {"ha_promote_on_failure": "when-synced"},
        },
    )
    stage.kill(a)
    stage.declares(b, "ha.promote.test", 0)
    stage.lacks(b, "ha.nopromote.test")
    stage.start(a)
    stage.declares(a, "ha.nopromote.test", 10)
    stage.declares(a, "ha.promote.test", 0)


def promote_on_shutdown(stage: Stage) -> None:
    """An unsynchronised mirror does not lead after an orderly stop, unless the policy allows it."""
    a, b, _ = stage.nodes
    _unsynchronised(
        stage,
        {
            "ha.promote": {"ha_promote_on_shutdown": "always"},
            "ha.nopromote": {},
            "ha.nopromoteonfailure": {
                "ha_promote_on_failure": "when-synced",
                "ha_promote_on_shutdown": "always",
            },
        },
    )
    stage.stop(a)
    # An orderly stop may still synchronise the mirror, and loses no message then (tests.cluster.test_suites has both
    # answers).
    stage.declares(b, "ha.promote.test", 0, 10)
    stage.lacks(b, "ha.nopromote.test", "ha.nopromoteonfailure.test")
    stage.start(a)
    stage.declares(a, "ha.nopromote.test", 10)
    stage.declares(a, "ha.nopromoteonfailure.test", 10)


def nodes_policy_should_pick_master_from_its_params(stage: Stage) -> None:
    """Under a policy of one node, the lead moves to it once it is synchronised, even if it is not the first mirror."""
    a = stage.nodes[0]
    stage.declare(a, QUEUE)
    stage.publish(a, QUEUE, LOAD)
    _apply(stage, ("all", None))
    found = stage.placed(QUEUE, a, stage.nodes[1:], stage.nodes[1:])
    first, last = (stage.node(name) for name in found.synchronised)
    _apply(stage, ("nodes", [last]))
    stage.cluster.wait_placed(QUEUE, last, mirrors=[])
    stage.say("moved to the other mirror than the first")
    _apply(stage, ("nodes", [last, a]))
    stage.cluster.wait_placed(QUEUE, last, mirrors=[a], synchronised=[a])
    stage.say("stays, and A mirrors it")
    _apply(stage, ("nodes", [first]))
    stage.cluster.wait_placed(QUEUE, first, mirrors=[])
    stage.say("moved to the mirror that was first, and was not synchronised")
    stage.declares(a, QUEUE, LOAD)


def vhost_deletion(stage: Stage) -> None:
    """A vhost is deleted with its mirrored queues and their policy."""
    a, b, _ = stage.nodes
    stage.cluster.api("PUT", "vhosts/gone", {})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    stage.cluster.api("PUT", "permissions/gone/guest", everything)
    stage.cluster.set_policy("ha", ".*", {"ha-mode": "all"}, vhost="gone")
    with stage.cluster.channel(a, "gone") as channel:
        channel.queue_declare("vhost_deletion-q", durable=True)
    stage.cluster.wait(
        lambda: len(stage.cluster.queues(b, "gone")["vhost_deletion-q"].mirrors or ()) == 2, "two mirrors"
    )
    stage.cluster.api("DELETE", "vhosts/gone")
    for node in stage.nodes:
        names = [row["name"] for row in stage.cluster.api("GET", "vhosts", at=node)]
        stage.say(f"vhosts at {stage.letter(node)}: {' '.join(names)}")


def promote_follower_after_standalone_restart(stage: Stage) -> None:
    """All nodes were stopped, the leader's last; a mirror's node comes back alone, the others are forgotten."""
    _standalone(stage, 1)


def promote_follower_after_standalone_restart_of_the_other(stage: Stage) -> None:
    """The same for the mirror that was stopped first.

    The suite does that in the same case, after the first node, with a forgotten node, which a cluster refuses here.
    """
    _standalone(stage, 2)


def _standalone(stage: Stage, index: int) -> None:
    a, b, c = stage.nodes
    stage.mirror(PATTERN, "all")
    stage.declare(a, QUEUE)
    stage.publish(a, QUEUE, 15)
    stage.placed(QUEUE, a, [b, c], [b, c])
    stage.stop(c)
    stage.stop(b)
    stage.stop(a)
    first, other = stage.nodes[index], stage.nodes[3 - index]
    stage.cluster.revive_without(first, other, a)
    stage.say(f"{stage.letter(first)} starts; {stage.letter(other)} and A are forgotten")
    stage.declares(first, QUEUE, 15)
    stage.placed(QUEUE, first, [], asked=first)


# -- policies at random -----------------------------------------------------------------------


def failing_random_policies(stage: Stage) -> None:
    """Apply sequences of policies at which RabbitMQ once failed."""
    a, b, _ = stage.nodes
    for wishes in (
        [("nodes", [a, b]), ("nodes", [a])],
        [("exactly", 3), None, ("all", None), ("nodes", [b])],
        [
            ("all", None),
            None,
            ("exactly", 2),
            ("all", None),
            ("exactly", 3),
            ("exactly", 3),
            None,
            ("exactly", 3),
            ("all", None),
        ],
    ):
        _sequence(stage, wishes)


def random_policy(stage: Stage) -> None:
    """Apply random sequences of policies, the same ones every time: the last one holds in the end."""
    chance = random.Random("random_policy")
    for _ in range(6):
        wishes = [_wish(stage, chance) for _ in range(chance.randint(1, 5))]
        _sequence(stage, wishes)


def _wish(stage: Stage, chance: random.Random) -> Wish:
    mode = chance.choice(["none", "none", "none", "all", "nodes", "exactly"])
    if mode == "nodes":
        return mode, chance.sample(stage.nodes, chance.randint(1, 3))
    if mode == "exactly":
        return mode, chance.randint(1, 3)
    return None if mode == "none" else (mode, None)


def _sequence(stage: Stage, wishes: Sequence[Wish]) -> None:
    a = stage.nodes[0]
    stage.declare(a, QUEUE)
    stage.publish(a, QUEUE, LOAD // 10)

    def apply(node: ClusterNode) -> None:
        for wish in wishes:
            _apply(stage, wish, at=node)

    # At all nodes at the same time; each of them applies the last policy last.
    with ThreadPoolExecutor(len(stage.nodes)) as pool:
        list(pool.map(apply, stage.nodes))
    stage.cluster.wait(lambda: _holds(stage, wishes[-1]), f"the policy {_reported(stage, wishes[-1])}")
    stage.say(f"{'; '.join(_reported(stage, wish) for wish in wishes)}: the last one holds")
    stage.declares(a, QUEUE, LOAD // 10)
    stage.delete(a, QUEUE)
    stage.unmirror()


def _apply(stage: Stage, wish: Wish, at: ClusterNode | None = None) -> None:
    if wish is None:
        stage.unmirror(at=at)
    else:
        stage.mirror(PATTERN, *wish, at=at, ha_sync_mode="automatic")


def _reported(stage: Stage, wish: Wish) -> str:
    if wish is None:
        return "none"
    mode, params = wish
    given = [stage.letter(each) for each in params] if isinstance(params, list) else [params]
    return " ".join(str(word) for word in (mode, *given) if word is not None)


def _holds(stage: Stage, wish: Wish) -> bool:
    found = stage.cluster.queue(QUEUE)
    if found is None or found.state != "running":
        return False
    if wish is None:
        return found.mirrors is None
    replicas = {found.leader, *(found.mirrors or ())}
    mode, params = wish
    if mode == "nodes":
        return found.mirrors is not None and replicas == {each.node for each in params}
    return found.mirrors is not None and len(replicas) == (3 if mode == "all" else params)


# -- rebalancing ------------------------------------------------------------------------------


def _five(stage: Stage, mode: str, params: int | Sequence[ClusterNode] | None = None) -> None:
    """Make five mirrored queues led by A, two of them with messages."""
    a = stage.nodes[0]
    for queue in FIVE:
        stage.declare(a, queue)
    stage.publish(a, "q1", 5)
    stage.publish(a, "q2", 3)
    stage.mirror("^q.*", mode, params, ha_sync_mode="automatic")
    _wait_five(stage, {"all": 2, "exactly": 1, "nodes": 1}[mode])


def _wait_five(stage: Stage, mirrors: int) -> None:
    def synchronised() -> bool:
        found = stage.cluster.queues(stage.nodes[0])
        return len(found) == len(FIVE) and all(len(each.synchronised) == mirrors for each in found.values())

    stage.cluster.wait(synchronised, "all mirrors synchronised")


def _rebalance(stage: Stage, most: int) -> None:
    """Rebalance; wait until no node leads more than `most`, and check that the first two queues have stayed."""
    stage.cluster.api("POST", "rebalance/queues", {})

    def spread() -> bool:
        found = stage.cluster.queues(stage.nodes[0])
        leaders = Counter(placed.leader for placed in found.values())
        return len(found) == len(FIVE) and max(leaders.values()) <= most

    stage.cluster.wait(spread, f"no more than {most} leaders on a node")
    stage.say(f"no node leads more than {most} of {len(FIVE)}")
    found = stage.cluster.queues(stage.nodes[0])
    for queue in FIVE[:2]:
        stage.say(f"{queue}: led by {stage.letter(found[queue].leader)}")
    stage.declares(stage.nodes[0], "q1", 5)
    stage.declares(stage.nodes[0], "q2", 3)


def rebalance_all(stage: Stage) -> None:
    """Leaders of queues that are mirrored everywhere are spread over all nodes."""
    _five(stage, "all")
    _rebalance(stage, 2)


def rebalance_nodes(stage: Stage) -> None:
    """Leaders of queues that are mirrored on two nodes are spread over these."""
    _five(stage, "nodes", stage.nodes[:2])
    _rebalance(stage, 3)


def rebalance_exactly(stage: Stage) -> None:
    """Leaders of queues with one mirror somewhere are spread as far as their mirrors allow."""
    _five(stage, "exactly", 2)
    a = stage.nodes[0]
    # Otherwise only one node could take the three queues that have to move.
    while len({mirror for queue in FIVE[2:] for mirror in stage.cluster.queues(a)[queue].mirrors or ()}) == 1:
        stage.cluster.api("DELETE", f"queues/%2F/{FIVE[2]}", at=a)
        stage.declare(a, FIVE[2])
        _wait_five(stage, 1)
    _rebalance(stage, 3)


def change_cluster(stage: Stage) -> None:
    """Two nodes join: one gets the missing mirror; when that node ends, the other gets it."""
    a, b, c, d, e = stage.nodes
    stage.stop(d, e)
    stage.declare(a, QUEUE)
    stage.mirror(PATTERN, "exactly", 4)
    stage.placed(QUEUE, a, [b, c])
    stage.start(d, e)
    stage.cluster.wait(
        lambda: (seen := stage.cluster.queue(QUEUE)) is not None and len(seen.mirrors or ()) == 3,
        "three mirrors",
    )
    found = stage.cluster.queue(QUEUE)
    assert found is not None
    assert found.mirrors is not None
    [gone] = set(found.mirrors) - {b.node, c.node}
    stage.say("D or E mirrors it")
    stage.node(gone).stop()
    other = e if gone == d.node else d
    stage.cluster.wait_placed(QUEUE, a, mirrors=[b, c, other])
    stage.say("that one stops; the other mirrors it")


CASES: Final = (
    *(
        Case(play)
        for play in (
            change_policy,
            rapid_change,
            force_delete_if_no_master,
            promote_on_failure,
            promote_on_shutdown,
            nodes_policy_should_pick_master_from_its_params,
            vhost_deletion,
            failing_random_policies,
            random_policy,
            rebalance_all,
            rebalance_nodes,
            rebalance_exactly,
        )
    ),
    # 3.10.8 forgets the queue with the nodes.
    Case(promote_follower_after_standalone_restart, alone=True, shown=False),
    Case(promote_follower_after_standalone_restart_of_the_other, alone=True, shown=False),
    Case(change_cluster, nodes=5),
)
