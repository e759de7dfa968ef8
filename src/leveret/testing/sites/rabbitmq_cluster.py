"""A private, throw-away cluster of RabbitMQ nodes on loopback: the oracle and the reference for mirrored queues.

    with RabbitCluster() as cluster:
        cluster.set_policy("ha", "^q", {"ha-mode": "all"})
        cluster.nodes[0].kill9()

The nodes n1@localhost, n2@localhost, ... share an epmd and a cookie of their own, and start together. `erl_call` reads
the state of the queues from the nodes themselves, because the HTTP API shows the mirrors of an idle queue as of its
last work.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from leveret.testing.network.ports import LOOPBACK, free_port
from leveret.testing.servers.rabbitmq import COOKIE, Epmd, RabbitNode
from leveret.testing.sites.mirror_cluster import ClusterNode, MirrorCluster, QueuePlace

CALL_TIMEOUT_S: Final = 5.0
_NONE: Final = "-"

# A line for each queue: name, leader, mirrors, synchronised mirrors, state, messages, policy. The mirrors of a quorum
# queue are its members, and those that are online count as synchronised. Of a stream all replicas do: a node that was
# killed does not tell which of them are online.
_REPORT: Final = """
Nodes = fun('') -> "-"; (Names) -> lists:flatten(["="] ++ lists:join(",", [atom_to_list(N) || N <- Names])) end,
Word = fun(W) when is_tuple(W) -> atom_to_list(element(1, W)); (W) when is_atom(W) -> atom_to_list(W);
          (W) when is_integer(W) -> integer_to_list(W); (W) -> binary_to_list(iolist_to_binary(W)) end,
Keys = [name, pid, slave_pids, synchronised_slave_pids, state, messages, policy],
Places = fun(Row) ->
    {ok, Q} = rabbit_amqqueue:lookup(proplists:get_value(name, Row)),
    case amqqueue:get_type(Q) of
      rabbit_classic_queue ->
        At = fun(Key) -> case proplists:get_value(Key, Row, '') of '' -> ''; Pids -> [node(P) || P <- Pids] end end,
        Pid = proplists:get_value(pid, Row, none),
        Leader = case is_pid(Pid) of true -> atom_to_list(node(Pid)); false -> "-" end,
        {Leader, At(slave_pids), At(synchronised_slave_pids)};
      rabbit_stream_queue ->
        #{nodes := Replicas} = amqqueue:get_type_state(Q),
        Writer = node(amqqueue:get_pid(Q)),
        {atom_to_list(Writer), Replicas -- [Writer], Replicas -- [Writer]};
      rabbit_quorum_queue ->
        [{leader, First}, {members, Members}, {online, Online}] = rabbit_amqqueue:info(Q, [leader, members, online]),
        case First of '' -> {"-", Members, Online};
          _ -> {atom_to_list(First), Members -- [First], Online -- [First]} end
    end
  end,
Lines = [begin
    [{name, {resource, _, queue, Name}} | Rest] = Row,
    Get = fun(Key, Else) -> proplists:get_value(Key, Rest, Else) end,
    {Leader, Mirrors, Synchronised} = Places(Row),
    lists:join("\t", [binary_to_list(Name), Leader, Nodes(Mirrors), Nodes(Synchronised),
        Word(Get(state, down)), Word(Get(messages, '')), Word(Get(policy, ''))])
  end || Row <- rabbit_amqqueue:info_all(<<"VHOST">>, Keys)],
base64:encode_to_string(lists:flatten(lists:join("\n", Lines))).
"""


class RabbitCluster(MirrorCluster):
    """See the module."""

    kind = "rabbitmq"
    begins_empty = True

    def __init__(
        self,
        size: int = 3,
        *,
        plugins: Sequence[str] = ("rabbitmq_management",),
        config: Mapping[str, str] | None = None,
        schedulers: int | None = 1,
        parent_dir: Path | None = None,
    ) -> None:
        """Prepare `size` nodes; nothing runs yet. The other arguments are those of each RabbitNode."""
        self.home = Path(tempfile.mkdtemp(prefix="rabbitmq-cluster-", dir=parent_dir)).resolve()
        epmd_port = free_port()
        self._epmd = Epmd(self.home, epmd_port)
        names = [f"n{number}" for number in range(1, size + 1)]
        formation = {
            f"cluster_formation.classic_config.nodes.{number}": f"{name}@localhost"
            for number, name in enumerate(names, 1)
        }
        self.rabbits = [
            RabbitNode(
                plugins=plugins,
                config={"cluster_formation.peer_discovery_backend": "classic_config"}
                | formation
                | dict(config or {}),
                schedulers=schedulers,
                parent_dir=self.home,
                name=name,
                epmd_port=epmd_port,
            )
            for name in names
        ]

    @property
    def nodes(self) -> Sequence[ClusterNode]:
        """All nodes, running or not."""
        return self.rabbits

    def form(self) -> None:
        """Start all nodes at the same time; return when they are one cluster."""
        self._epmd.start()
        for each in self.rabbits:
            each.launch()
        for each in self.rabbits:
            each.wait_ready()
        for each in self.rabbits[1:]:
            # Nodes that start at the same instant may each form a cluster of their own.
            if self.members_running(each) == {each.node}:
                self.join(each, self.rabbits[0])
        self.wait_members()

    def join(self, node: ClusterNode, other: ClusterNode) -> None:
        """Reset a node, and have it join the cluster of another one."""
        node.ctl("stop_app")
        node.ctl("reset")
        node.ctl("join_cluster", other.node)
        node.ctl("start_app")

    def wait_without_copies(self, node: ClusterNode) -> None:
        """See MirrorCluster. A mirror that is no longer wanted has ended with its messages."""

    def revive_without(self, node: ClusterNode, *lost: ClusterNode) -> None:
        """See MirrorCluster. RabbitMQ forgets nodes before its start."""
        for each in lost:
            node.ctl("forget_cluster_node", "--offline", each.node)
        self.start(node)

    def start_alone(self, node: ClusterNode) -> None:
        """See MirrorCluster. Without `force_boot` RabbitMQ would wait for the node that ran last."""
        node.ctl("force_boot")
        self.start(node)

    def drain(self, node: ClusterNode) -> None:
        """See MirrorCluster."""
        self._rabbit(node).ctl("drain", program="rabbitmq-upgrade")

    def revive(self, node: ClusterNode) -> None:
        """See MirrorCluster."""
        self._rabbit(node).ctl("revive", program="rabbitmq-upgrade")

    def _rabbit(self, node: ClusterNode) -> RabbitNode:
        return next(each for each in self.rabbits if each is node)

    def close(self) -> None:
        """End all processes and remove their files."""
        for each in self.rabbits:
            each.close()
        self._epmd.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def queues(self, asked: ClusterNode, vhost: str = "/") -> Mapping[str, QueuePlace]:
        """See MirrorCluster."""
        lines = self._eval(asked, _REPORT.replace("VHOST", vhost))
        return dict(_placed(line) for line in lines)

    def _eval(self, asked: ClusterNode, code: str) -> list[str]:
        """Run Erlang code in a node; return the lines of its value, which must be text in base64."""
        argv = ["erl_call", "-address", f"{LOOPBACK}:{self._rabbit(asked).dist_port}", "-c", COOKIE, "-e"]
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.home)}
        try:
            done = subprocess.run(
                argv, input=code, env=env, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            # A queue does not answer while it synchronises.
            raise OSError(f"{asked.node}: no answer within {CALL_TIMEOUT_S:g} s") from None
        if done.returncode != 0 or not done.stdout.startswith("{ok,"):
            raise OSError(f"{asked.node}: {(done.stdout + done.stderr).strip()}")
        return _decoded(done.stdout)


def _decoded(answer: str) -> list[str]:
    return base64.b64decode(answer.partition('"')[2].partition('"')[0]).decode().splitlines()


def _placed(line: str) -> tuple[str, QueuePlace]:
    name, leader, mirrors, synchronised, state, messages, policy = line.split("\t")
    return name, QueuePlace(
        "" if leader == _NONE else leader,
        _names(mirrors),
        _names(synchronised) or (),
        state,
        int(messages) if messages.isdigit() else None,
        policy,
    )


def _names(text: str) -> tuple[str, ...] | None:
    """Return the nodes of a column; None if the queue has no such property."""
    return None if text == _NONE else tuple(name for name in text[1:].split(",") if name)
