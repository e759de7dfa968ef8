"""A process that has a lease's companion, for tests that kill, stop and cut off either of the two.

Usage: python -m tests.e2e.companion_holder LEASE_ID TTL_S CACERTFILE|none < ENDPOINTS

It prints the companion's process id after each look, and looks whenever a line comes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from leveret.config.sections.etcd import EtcdOptions
from leveret.config.uris import Endpoints
from leveret.runtime.coordination.companion import LeaseCompanion


def main(lease_id: str, ttl_s: str, cacertfile: str) -> None:
    options = EtcdOptions(
        endpoints=Endpoints().parse(sys.stdin.readline().strip()),
        cacertfile=None if cacertfile == "none" else Path(cacertfile),
    )
    companion = LeaseCompanion(options, int(lease_id), float(ttl_s))
    while True:
        companion.ensure_started()
        print(companion.pid, flush=True)
        if not sys.stdin.readline():
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
