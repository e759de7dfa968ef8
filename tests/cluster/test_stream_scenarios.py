"""The scenarios of a stock client of streams pass at each node of a cluster, also when a leader is lost, and later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.sites.cluster_site import ClusterSite, SiteNode

SCENARIOS: Final = Path(__file__).parents[1] / "suites" / "clients" / "rstream_scenarios.py"
RUN_TIMEOUT_S: Final = 600.0


def passed_at(node: SiteNode, folder: Path) -> str:
    """Run all scenarios at a node; return the last line of the report, which counts them."""
    ports = {"SUITE_STREAM_PORT": node.stream_port, "SUITE_AMQP_PORT": node.amqp_port}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", str(SCENARIOS)],
        cwd=folder,
        env=os.environ | {name: str(port) for name, port in ports.items()},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{node.node}: {done.stdout[-10_000:]}"
    return done.stdout.splitlines()[-1]


@pytest.mark.torture
@pytest.mark.timeout(4 * RUN_TIMEOUT_S)
def test_they_pass_before_the_loss_of_a_leader_after_it_and_when_it_is_back(tmp_path: Path) -> None:
    # Streams are led by any node then, so clients are led to other nodes than the one that they know.
    with ClusterSite(tmp_path, config={"queue_leader_locator": "balanced"}) as site:
        first, second, third = site.members
        found = [passed_at(first, tmp_path)]
        first.kill9()
        found.append(passed_at(second, tmp_path))
        site.start(first)
        found += [passed_at(third, tmp_path), passed_at(first, tmp_path)]
        assert len({line.split()[0] for line in found}) == 1, found
