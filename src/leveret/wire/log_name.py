"""Names of outgoing logs: a log is a vhost and a node.

A single node has one outgoing log for each vhost, served as OUTGOING_STREAM; its name in an archive is the vhost's.
In a cluster each node has one, of the queues that it leads. There OUTGOING_STREAM is a super stream, and its partitions
are the logs of the nodes. A *label* tells nodes apart: the node's name, and the begin of its data's id, because a node
that was forgotten may join again, under its name and without its data.
"""

from __future__ import annotations

from typing import Final

from leveret.wire.record import OUTGOING_STREAM

CLUSTER_PROPERTY: Final = "leveret.cluster"
LABEL_PROPERTY: Final = "leveret.node"
"""Properties of a cluster's node in the stream protocol: the cluster's id, and the node's label."""
ABSENT: Final = "absent"
"""The state of the log of a node that does not run, or was forgotten, and is not missed: others lead its queues."""
_SEPARATOR: Final = "\0"
_PARTITION: Final = f"{OUTGOING_STREAM}/"
_ID_MARK: Final = "#"
_ID_CHARACTERS: Final = 8


def log_name(vhost: str, label: str = "") -> str:
    """The name of the outgoing log of a vhost at a node; without a label, at a single node."""
    if not label and _SEPARATOR not in vhost:
        return vhost
    return f"{vhost}{_SEPARATOR}{label}"


def vhost_of(log: str) -> str:
    """The vhost of a log."""
    vhost, separator, _ = log.rpartition(_SEPARATOR)
    return vhost if separator else log


def label_of(log: str) -> str:
    """The label of a log's node; empty for a single node."""
    _, separator, label = log.rpartition(_SEPARATOR)
    return label if separator else ""


def title_of(log: str) -> str:
    """A log in a sentence."""
    label = label_of(log)
    return f"vhost '{vhost_of(log)}'" + (f" at node '{node_of(label)}'" if label else "")


def node_label(node: str, node_id: str) -> str:
    """The label of a cluster's node."""
    return f"{node}{_ID_MARK}{node_id[:_ID_CHARACTERS]}"


def node_of(label: str) -> str:
    """The name of the node with this label."""
    return label.rpartition(_ID_MARK)[0] or label


def partition_name(label: str) -> str:
    """The name of the stream under which a cluster's node serves its outgoing log."""
    return _PARTITION + label


def label_of_partition(stream: str) -> str:
    """The label of the node that serves this stream; empty if it is no node's outgoing log."""
    return stream.removeprefix(_PARTITION) if stream.startswith(_PARTITION) else ""
