"""The file `cluster.json`: the cluster that this node belongs to.

The file is missing before the first attempt to enter a cluster. `{"had_data": ...}` belongs to an unfinished
attempt: the process was killed, or etcd stopped answering. If the node had no data before, its present data come
from that attempt; no client was served, so the cluster's state replaces them. `{"cluster_id": ...}` names the
node's cluster. `{"revision": ...}` beside it is a revision of etcd that this node has seen: an etcd with an earlier one
was restored from an older copy.

The file `cluster_runs.json` beside it counts how often the node has entered: `{"runs": ...}`. The node's record in etcd
has that count, too, and these data are an older copy of the node's if it is later there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from leveret.storage.state_file import StateFile

NAME: Final = "cluster.json"
RUNS_NAME: Final = "cluster_runs.json"


class MembershipFile:
    """See the module; all methods raise StorageError if the file is damaged or cannot be written."""

    def __init__(self, data_dir: Path) -> None:
        """Name the file; it need not exist."""
        self._data_dir = data_dir
        self._file = StateFile(data_dir / NAME)
        self._runs = StateFile(data_dir / RUNS_NAME)

    @property
    def cluster_id(self) -> str:
        """The cluster that this node belongs to; empty if it belongs to none."""
        return str(self._file.load().get("cluster_id", ""))

    @property
    def had_data(self) -> bool:
        """Whether this node had definitions of its own before it tried to enter for the first time."""
        return bool(self._file.load().get("had_data", (self._data_dir / "definitions").exists()))

    def begin(self) -> None:
        """Store that this node tries to enter; must precede all its other writes."""
        if not self._file.load():
            self._file.save({"had_data": self.had_data})

    def entered(self, cluster_id: str) -> None:
        """Store that this node is a member."""
        if self.cluster_id != cluster_id:
            self._file.save({"cluster_id": cluster_id})

    @property
    def revision(self) -> int:
        """The latest revision of its cluster's etcd that this node is known to have seen."""
        return int(self._file.load().get("revision", 0))

    def saw(self, revision: int) -> None:
        """Store that this node, a member, has seen a revision of etcd. Blocks for the disk."""
        if self.revision < revision:
            self._file.save({"cluster_id": self.cluster_id, "revision": revision})

    @property
    def runs(self) -> int | None:
        """How often this node has entered; None if nobody counted, or the operator removed the file."""
        found = self._runs.load().get("runs")
        return None if found is None else int(found)

    def count_run(self, runs: int) -> None:
        """Store that this node enters for that time; must precede the same count in etcd. Blocks for the disk."""
        self._runs.save({"runs": runs})

    def give_up(self) -> None:
        """Remove the file: this node serves without a cluster, and its data are its own from now on."""
        if not self.cluster_id:
            self._file.remove()
