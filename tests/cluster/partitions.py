"""What happens to a cluster when its network is parted, with packets that are dropped, and what it costs.

    python -m tests.cluster.partitions FOLDER NODES ETCD_MEMBERS SEED SCENARIO...

is run in a world of its own (leveret.testing.sites.network_hosts). After each scenario everything must be in order
without anybody's hand: all queues are led, all mirrors synchronised, and the books balance
(tests.cluster.partition_story).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from leveret.testing.applications.applications import now_ms
from leveret.testing.sites.network_hosts import Network, NetworkLink
from leveret.testing.sites.network_site import NetworkNode, NetworkSite
from tests.cluster.partition_story import ALL, FIRST, Cut, Story
from tests.cluster.torture_stage import CONFIG, LEASE_S

FLAPS: Final = 6
BAD: Final = NetworkLink(loss=0.05, rate_bit_s=4_000_000)
BAD_S: Final = 8.0


def leader_cut_off(story: Story) -> Cut:
    """A leader reaches nobody. It has written what nobody else has, and not confirmed it: that is set aside."""
    leader = story.leader()
    before = story.quarantine(leader)
    cut = story.fork([leader], [*story.but(leader), *story.site.etcd_hosts])
    story.wait_synchronised()
    assert story.quarantine(leader) > before
    return cut


def leader_without_etcd(story: Story) -> Cut:
    """A leader reaches all nodes, and etcd not."""
    return story.fork([story.leader()], story.site.etcd_hosts)


def leader_unheard(story: Story) -> Cut:
    """What a leader sends gets nowhere; what is sent to it arrives."""
    leader = story.leader()
    return story.fork([leader], [*story.but(leader), *story.site.etcd_hosts], back=False)


def leader_deaf(story: Story) -> Cut:
    """Nothing gets to a leader; what it sends arrives."""
    leader = story.leader()
    with story.site.parted([*story.but(leader), *story.site.etcd_hosts], [leader], back=False):
        return story.fork([leader], [])


def leader_without_nodes(story: Story) -> Cut:
    """A leader reaches etcd, and no other node: each keeps its lease, and leads on without who is not reached."""
    leader, others = story.leader(), story.but(story.leader())
    with story.site.parted([leader], others):
        began_ms = now_ms()
        story.wait_confirms_at_leaders()
        story.wait_told([leader], others)
        story.wait_told(others, [leader])
        ended_ms = now_ms()
    for node in story.nodes:
        story.wait_told([node], [])
    return Cut(began_ms, ended_ms, (), [leader])


def leader_fades(story: Story) -> Cut:
    """A leader is cut off from other nodes first and then from etcd: nobody else has what it confirmed in between."""
    leader, others = story.leader(), story.but(story.leader())
    with story.site.parted([leader], others):
        began_ms = now_ms()
        story.wait_confirms([leader], [FIRST])
        with story.site.parted([leader], story.site.etcd_hosts):
            story.wait_sent_away([leader])
            story.wait_down(others)
            ended_ms = now_ms()
    return Cut(began_ms, ended_ms, [leader], others)


def flapping(story: Story) -> Cut:
    """A leader is cut off again and again, for less than its lease and for more."""
    leader = story.leader()
    began_ms = now_ms()
    for _ in range(FLAPS):
        with story.site.parted([leader], [*story.but(leader), *story.site.etcd_hosts]):
            time.sleep(story.chance.uniform(0.1, 1.5 * LEASE_S))
        time.sleep(story.chance.uniform(0.1, LEASE_S))
    return Cut(began_ms, now_ms(), (), story.but(leader))


def bad_mirror(story: Story) -> Cut:
    """Packets get lost on the way from and to a mirror, and few pass."""
    return _bad(story, story.but(story.leader())[0])


def bad_leader(story: Story) -> Cut:
    """Packets get lost on the way from and to a leader, and few pass."""
    return _bad(story, story.leader())


def _bad(story: Story, node: NetworkNode) -> Cut:
    # What is under way to a consumer when its node gives up comes over such a wire after others have settled it.
    story.dismiss(node)
    began_ms = now_ms()
    with story.site.network.bad(node.host, BAD):
        time.sleep(BAD_S)
    return Cut(began_ms, now_ms(), (), story.but(node))


def minority_with_leader(story: Story) -> Cut:
    """Two of five nodes, a leader among them, and one of three members of etcd are on one side."""
    leader, *others = story.leader(), *story.but(story.leader())
    lesser, *etcd = story.site.etcd_hosts
    away, on = [leader, others[0]], others[1:]
    with story.site.parted([lesser], [*on, *etcd]):
        return story.fork(away, [*on, *etcd])


def majority_without_etcd(story: Story) -> Cut:
    """Three of five nodes, a leader among them, are on one side, and the majority of etcd on the other.

    The two can go on if each of them has everything; of what is confirmed by a majority the other three may have more.
    """
    leader, *others = story.leader(), *story.but(story.leader())
    lesser, *etcd = story.site.etcd_hosts
    away, on = [leader, *others[:2]], others[2:]
    with story.site.parted([lesser], [*on, *etcd]):
        if story.confirm == ALL:
            return story.fork(away, [*on, *etcd])
        with story.site.parted(away, [*on, *etcd]):
            began_ms = now_ms()
            story.wait_sent_away(away)
            story.wait_down(on)
            ended_ms = now_ms()
    return Cut(began_ms, ended_ms, away, on)


SCENARIOS: Final[dict[str, Callable[[Story], Cut]]] = {
    each.__name__: each
    for each in (
        leader_cut_off,
        leader_without_etcd,
        leader_unheard,
        leader_deaf,
        leader_without_nodes,
        leader_fades,
        flapping,
        bad_mirror,
        bad_leader,
        minority_with_leader,
        majority_without_etcd,
    )
}


def main(folder: Path, nodes: int, etcd_members: int, seed: str, scenarios: Sequence[str]) -> None:
    """Play scenarios in one cluster."""
    with Network() as network, NetworkSite(network, folder, nodes, CONFIG, etcd_members=etcd_members) as site:
        story = Story(site, folder, seed)
        story.begin()
        for name in scenarios:
            print(story.play(name, SCENARIOS[name]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
