"""A cluster that is gone with its etcd, brought up again from copies of its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.output.values import MessageLine, Table
from leveret.config.kinds import NodeName

_COLUMNS: Final = ("vhost", "name", "leader", "copies", "next_offset", "note")


@command(
    'Describing the copy for node {node_name} to a file at "{file}" ...', "describe_copy rabbit@a a.copy"
)
def describe_copy(
    ctl: Session,
    node_name: Annotated[str, Argument(help="The `nodename` that the copy is to have in the new cluster.")],
    file: Annotated[
        Path, Argument(help="The description is written here, with the definitions of all users.")
    ],
) -> MessageLine:
    """Describe the data of a stopped follower, or of a stopped node, for `rebuild_cluster`.

    The data directory is that of --data-dir. The command changes it only by the repairs that a start makes.
    """
    from leveret.cli.offline import describe

    if ctl.data_dir is None:
        raise CtlError(exits.USAGE, "the data directory of the copy is to be named with --data-dir")
    try:
        NodeName().parse(node_name)
    except ValueError:
        raise CtlError(exits.USAGE, f"{node_name!r} is no name of a node: {NodeName().allowed}") from None
    found = describe(ctl.data_dir, node_name, file)
    lacks = f"; it is incomplete: {found['lacks']}" if found["lacks"] else ""
    return MessageLine(f"The copy has {found['logs']} logs of queues{lacks}", found)


@command("", "rebuild_cluster --config leveret.conf a.copy b.copy c.copy")
def rebuild_cluster(
    ctl: Session,
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Written by `describe_copy`, one a node.")],
    config: Annotated[
        list[Path],
        Option(
            envvar="LEVERET_CONFIG_FILE",
            metavar="<path>",
            help="Settings of any node of the new cluster, as for `leveret serve`; they name its etcd.",
        ),
    ],
    dry_run: Annotated[bool, Option("--dry-run", help="Only show the leader of each queue.")] = False,
    force: Annotated[bool, Option("--force", help="Take copies that are incomplete, too.")] = False,
) -> Table:
    """Make a new cluster from copies of a lost cluster's nodes, in an etcd without a cluster.

    The most complete copy of each queue leads it. Start the nodes on their copies afterwards. --data-dir names the data
    directory of one of them, for its secret.
    """
    from leveret.cli.offline import rebuild

    if ctl.data_dir is None:
        raise CtlError(exits.USAGE, "name one of the copies with --data-dir: its secret is needed")
    return Table.of(_COLUMNS, rebuild(config, ctl.data_dir, files, dry_run=dry_run, force=force))
