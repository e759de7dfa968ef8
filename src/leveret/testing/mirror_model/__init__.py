"""One mirrored queue in a cluster, without sockets, disks or clocks: what decides is the core, what happens is chance.

    run(seed) -> Report        raises Violation: an invariant does not hold; its text ends with what happened

Nodes do what runtime.cluster and runtime.mirroring do, in that order and with the names those have, and
core.replication.placement, core.replication.mirroring, core.replication.promises and core.replication.join decide.
Each of a node's tasks is a generator that yields where that of the runtime awaits, and there anything may happen.
Around them are the store (etcd) with its leases and watches, and links that deliver in order until they are cut. A
crash keeps what was synced, and of the rest as much as it likes. A lease ends at the store only after its holder has
given it up.

`wrong` names orders that must not be (`WRONG`): with each of them `run` has to find a violation for some seed, or the
model proves nothing.
"""

from leveret.testing.mirror_model.parts import WRONG, ModelReport, Stuck, Violation
from leveret.testing.mirror_model.world import hunt, run

__all__ = ["WRONG", "ModelReport", "Stuck", "Violation", "hunt", "run"]
