"""A model of one mirrored queue in a cluster, without sockets, disks or clocks: the core decides, chance orders events.

    run(seed) -> Report        raises Violation: an invariant does not hold; its text ends with the trace

Nodes take the steps of runtime.cluster and runtime.mirroring, in the same order and with the same names, and
core.replication.placement, core.replication.mirroring, core.replication.promises and core.replication.join decide.
Each of a node's tasks is a generator that yields where the task of the runtime awaits, and any other event may happen
there. Around the nodes are the store (etcd) with its leases and watches, and links that deliver in order until they
are cut. A crash keeps the synced records and any number of the others. A lease ends at the store only after its holder
has given it up.

`wrong` names wrong orders of steps (`WRONG`): with each of them `run` has to find a violation for some seed, or the
model proves nothing.
"""

from leveret.testing.mirror_model.parts import WRONG, ModelReport, Stuck, Violation
from leveret.testing.mirror_model.world import hunt, run

__all__ = ["WRONG", "ModelReport", "Stuck", "Violation", "hunt", "run"]
