"""The data kept for the standby: outgoing logs with their downstreams, and data that no node will recover."""

from __future__ import annotations

from typing import Annotated, Final

from typer import Argument

from leveret.cli.command import Session, command
from leveret.cli.commands.columns import with_node
from leveret.cli.output.values import Table

_DELETED: Final = ("vhost", "bytes")
_DOWNSTREAMS: Final = (
    "virtual_host",
    "downstream",
    "transferred",
    "lag_records",
    "missing_records",
    "missing_messages",
    "last_seen",
)
_MISSING: Final = ("missing_records", "missing_messages")
"""The columns that people see only if they are not empty: a terminal may have 80 columns."""


@command(
    "Deleting data of virtual hosts that this node does not own ...",
    "delete_orphaned_data_on_standby_replication_downstream_cluster",
)
def delete_orphaned_data_on_standby_replication_downstream_cluster(ctl: Session) -> Table:
    """Delete transferred data of virtual hosts that are deleted, untagged, or made again at the upstream."""
    rows = ctl.api.post_without_timeout("replication", "standby", "delete-orphaned", body={})
    return Table.of(_DELETED, rows, unknown=None)


@command(
    "Deleting internal streams of this upstream ...",
    "delete_internal_streams_on_standby_replication_upstream_cluster",
)
def delete_internal_streams_on_standby_replication_upstream_cluster(ctl: Session) -> Table:
    """Delete the collected records. A collection that goes on begins again with the queues' messages."""
    rows = ctl.api.post_without_timeout("replication", "standby", "delete-outgoing", body={})
    return Table.of(with_node(_DELETED, rows), rows, unknown=None)


@command("Listing downstreams of this node ...", "list_standby_replication_downstreams")
def list_standby_replication_downstreams(ctl: Session) -> Table:
    """List the downstreams of this upstream, with their positions and the number of records that they missed."""
    rows = ctl.api.get("replication", "standby", "downstreams")
    columns: tuple[str, ...] = _DOWNSTREAMS
    if ctl.is_for_people and not any(row[name] for row in rows for name in _MISSING):
        columns = tuple(name for name in columns if name not in _MISSING)
    return Table.of(with_node(columns, rows), rows, unknown=None)


@command("Forgetting downstream {downstream} ...", "forget_standby_replication_downstream eu.2")
def forget_standby_replication_downstream(
    ctl: Session,
    downstream: Annotated[
        str, Argument(help="Name of the downstream, as list_standby_replication_downstreams shows it.")
    ],
) -> None:
    """Forget a downstream that will not return. If it returns, it is known again."""
    ctl.api.delete("replication", "standby", "downstreams", downstream)
