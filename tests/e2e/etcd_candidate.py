"""A process that wants to lead, for tests that stop and kill it; a JSON line for all that happens to it.

Usage: python -m tests.e2e.etcd_candidate ENDPOINTS PREFIX NODE_ID LEASE_TTL_MS

    {"event": "leader", "node_id": "a", "epoch": 1, "at_s": 5.01}    or node_id null: nobody leads
    {"event": "won", "epoch": 1, "at_s": 5.02}
    {"event": "promised", "at_s": 7.81}                              when it last could have, once it leads no more
    {"event": "deposed", "why": "...", "at_s": 7.83}

Times are seconds since the machine started, so those of several processes compare.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Final

from leveret.config.sections.etcd import EtcdOptions
from leveret.config.uris import Endpoints
from leveret.runtime.coordination.election import Election, ElectionWon
from leveret.runtime.coordination.lease import boot_clock_s

PROMISE_EVERY_S: Final = 0.002


def say(event: str, **more: Any) -> None:
    line = json.dumps({"event": event, **more, "at_s": boot_clock_s()})
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


async def promise(election: Election) -> None:
    last_s = None
    while True:
        now_s = boot_clock_s()
        if election.holds_lease_now():
            last_s = now_s
        elif last_s is not None:
            say("promised", last_s=last_s)
            last_s = None
        await asyncio.sleep(PROMISE_EVERY_S)


async def main(endpoints: str, prefix: str, node_id: str, ttl_ms: str) -> None:
    settings = EtcdOptions(endpoints=Endpoints().parse(endpoints), prefix=prefix, lease_ttl_ms=int(ttl_ms))
    election = Election(settings, on_deposed=lambda why: say("deposed", why=why))
    election.start()
    promises = asyncio.create_task(promise(election))
    async for leader in election.watch_leader():
        say("leader", node_id=leader and leader.node_id, epoch=leader and leader.epoch)
        if leader is None:
            outcome = await election.campaign(node_id, f"tcp://{node_id}:5679", 0)
            if isinstance(outcome, ElectionWon):
                say("won", epoch=outcome.epoch)
    await promises


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
