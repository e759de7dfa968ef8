"""A leader and its followers as real processes, each follower behind a link that a test can cut.

    with FollowerSite(folder, followers=2) as site:
        site.start()
        connect(LOOPBACK, site.leader.node.amqp_port)
        site.wait_even()
        site.leader.node.kill9()
        site.promote(site.followers[0])

Every member can lead and follow, because it has ports, a data directory and a listener for followers of its own. Tests
operate members as an operator does, over the node's own socket.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

from leveret.management.http.socket_path import short_path
from leveret.testing.applications.compare import Comparison, compare
from leveret.testing.network.link_proxy import LinkProxy
from leveret.testing.network.ports import LOOPBACK, NotReady, free_port, wait_until
from leveret.testing.servers.broker import LeveretProcess

SECRET_FILE: Final = ".replication_secret"
PATIENCE_S: Final = 60.0
_HTTP_TIMEOUT_S: Final = 30.0


class UnexpectedAnswer(Exception):
    """The API answered with an error instead of a document."""


class ApiAnswer(NamedTuple):
    """The answer of the API."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is that of a success."""
        return self.status < HTTPStatus.BAD_REQUEST

    def json(self) -> Any:
        """Return the document."""
        return json.loads(self.body)


class FollowedNode(Protocol):
    """A node that can be followed: a leader, or a node of a cluster."""

    @property
    def replication_port(self) -> int:
        """The port for its followers."""

    @property
    def data_dir(self) -> Path:
        """The data directory, with the secret."""


class _Control(HTTPConnection):
    """An HTTP connection to a node's own socket."""

    def __init__(self, path: str) -> None:
        super().__init__("node", timeout=_HTTP_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """See HTTPConnection."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class FollowerSiteNode:
    """One member of the site, and the link to its leader.

    Attributes:
        name: its name in statuses and logs.
        node: its process.
        replication_port: the port for its followers.
        link: the proxy between this node and its leader.
        scheme: the scheme of its leader's URI, `tcp` or `tls`.
    """

    def __init__(self, name: str, folder: Path, config: Mapping[str, str]) -> None:
        """Prepare a member; nothing runs yet."""
        self.name = name
        self.scheme = "tcp"
        self.replication_port = free_port()
        self.node = LeveretProcess(
            folder / name, {"nodename": f"{name}@{LOOPBACK}", **config}, parent_dir=folder
        )
        self.link = LinkProxy(self.replication_port)

    @property
    def data_dir(self) -> Path:
        """The node's data directory."""
        return self.node.data_dir

    def close(self) -> None:
        """End the process and the link."""
        self.node.close()
        self.link.close()

    # -- its role -----------------------------------------------------------------------------

    def lead(self, *, wait: bool = True) -> None:
        """Start as a leader."""
        self.node.arguments = self._entry()
        self.node.launch()
        if wait:
            self.node.wait_ready()

    def follow(self, leader: FollowedNode, *, secret: bool = True, wait: bool = True) -> None:
        """Start as a follower of another member, through this member's link; `secret` copies the secret first."""
        self.link.target_port = leader.replication_port
        if secret:
            self.take_secret(leader)
        self.node.arguments = (*self._entry(), "--follow", f"{self.scheme}://{LOOPBACK}:{self.link.port}")
        self.node.launch()
        if wait:
            self.wait_answers()

    def _entry(self) -> tuple[str, ...]:
        return ("--replication-bind", LOOPBACK, "--replication-port", str(self.replication_port))

    def take_secret(self, leader: FollowedNode) -> None:
        """Copy the leader's secret, readable for its owner only, as an operator does once."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        mine = self.data_dir / SECRET_FILE
        mine.unlink(missing_ok=True)
        shutil.copyfile(leader.data_dir / SECRET_FILE, mine)
        mine.chmod(0o400)

    def wipe(self) -> None:
        """Remove all data of a stopped member."""
        assert not self.node.alive
        shutil.rmtree(self.data_dir, ignore_errors=True)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend the process (SIGSTOP) for the block."""
        self.node.server.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.node.server.signal(signal.SIGCONT)

    # -- the operator -------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        """Return the document of the API at a path below `/api/`.

        Raises:
            UnexpectedAnswer: the node refuses the request.
        """
        answer = self.ask("GET", path)
        if not answer.is_success:
            raise UnexpectedAnswer(f"{self.name}: {path}: {answer}")
        return answer.json()

    def ask(self, method: str, path: str, document: Any = None) -> ApiAnswer:
        """Return the answer of the API, also an error.

        Raises:
            OSError: the node does not answer.
        """
        with short_path(self.data_dir) as socket_path, closing(_Control(socket_path)) as control:
            headers = {"Content-Type": "application/json"}
            control.request(method, f"/api/{path}", json.dumps(document), headers)
            answer = control.getresponse()
            return ApiAnswer(answer.status, answer.read())

    def status(self) -> dict[str, Any]:
        """Return the status of the replication: the node's role, and the state of its links."""
        found: dict[str, Any] = self.get("replication/node")
        return found

    def promote(self, *, dry_run: bool = False, force: bool = False) -> dict[str, Any]:
        """Promote this follower, or with `dry_run` only report the loss; return the answer, also a refusal."""
        found: dict[str, Any] = self.ask(
            "POST", "replication/promote", {"dry_run": dry_run, "force": force}
        ).json()
        return found

    def divergent_messages(self) -> list[dict[str, Any]]:
        """Return the quarantined messages of all reports."""
        answer = self.ask("GET", "replication/divergent/messages")
        assert answer.is_success, answer
        return [json.loads(line) for line in answer.body.splitlines()]

    def row(self, follower: FollowerSiteNode) -> dict[str, Any] | None:
        """Return this node's status row of a follower; None while the follower is not connected."""
        rows = [row for row in self.status()["followers"] if row["name"] == follower.node_name]
        return rows[0] if rows else None

    @property
    def node_name(self) -> str:
        """Its name in the statuses of other nodes."""
        return self.node.config["nodename"]

    # -- waiting ------------------------------------------------------------------------------

    def wait_answers(self) -> None:
        """Wait until the API answers.

        Raises:
            NotReady: it does not, or the process has ended; the text has the end of its log.
        """

        def answers() -> bool:
            try:
                return bool(self.status())
            except (OSError, HTTPException, UnexpectedAnswer):
                return False

        self.node.server.wait(answers, f"an answer of {self.name}", PATIENCE_S)

    def wait_in_sync(self, follower: FollowerSiteNode, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a follower of this node streams and is in sync."""

        def in_sync() -> bool:
            row = self.row(follower)
            return row is not None and row["state"] == "streaming" and bool(row["in_sync"])

        _wait_reported(in_sync, f"{follower.name} in sync with {self.name}", timeout_s, self, follower)

    def wait_even(self, follower: FollowerSiteNode, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a follower lacks nothing of this node's data. The node must be idle."""

        def even() -> bool:
            row = self.row(follower)
            if row is None or row["state"] != "streaming" or row["lag_bytes"]:
                return False
            leader = follower.status()["leader"]
            return bool(leader["applied_position"] == self.status()["position"])

        _wait_reported(even, f"{follower.name} as far as {self.name}", timeout_s, self, follower)


class FollowerSite:
    """A leader and its followers; see the module.

    Attributes:
        leader: the present leader; `promote` sets it.
        followers: the other members, running or not.
    """

    def __init__(self, folder: Path, *, followers: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Prepare nodes `one`, `two`, ... in `folder`, all with the same configuration; nothing runs yet."""
        names = ("one", "two", "three", "four", "five")[: followers + 1]
        self.members = [FollowerSiteNode(name, folder, config or {}) for name in names]
        self.leader, *self.followers = self.members

    def __enter__(self) -> Self:
        for member in self.members:
            member.link.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None and not isinstance(value, NotReady):
            value.add_note(self.evidence())
        for member in self.members:
            member.close()

    def start(self) -> None:
        """Start the leader and its followers; wait until all are in sync."""
        self.leader.lead()
        for follower in self.followers:
            follower.follow(self.leader, wait=False)
        self.wait_in_sync()

    def promote(self, follower: FollowerSiteNode, *, force: bool = False) -> dict[str, Any]:
        """Promote a follower, and point the links of all other members, also the old leader's, at the new leader.

        Raises:
            AssertionError: the node refused the promotion.
        """
        result = follower.promote(force=force)
        assert result.get("promoted"), result
        follower.node.wait_ready()
        self._point_at(follower)
        return result

    def promote_by_restart(self, follower: FollowerSiteNode) -> None:
        """Promote as LavinMQ does: start a stopped follower with the flags of a leader."""
        follower.lead()
        self._point_at(follower)

    def _point_at(self, leader: FollowerSiteNode) -> None:
        self.followers = [member for member in self.members if member is not leader]
        self.leader = leader
        for other in self.followers:
            other.link.target_port = leader.replication_port
            other.link.cut()

    def wait_in_sync(self) -> None:
        """Wait until every follower is in sync."""
        for follower in self.followers:
            self.leader.wait_in_sync(follower)

    def wait_even(self) -> None:
        """Wait until no follower lacks anything. The leader must be idle."""
        for follower in self.followers:
            self.leader.wait_even(follower)

    def stop(self) -> None:
        """End all members in order, the leader first, because it sends its last changes before its end."""
        for member in (self.leader, *self.followers):
            if member.node.alive:
                member.node.stop()

    def compare(self) -> list[tuple[str, Comparison]]:
        """Compare each follower's directory with the leader's. All members must be stopped."""
        return [(each.name, compare(self.leader.data_dir, each.data_dir)) for each in self.followers]

    def assert_identical(self) -> int:
        """End all members; check that every follower has exactly the leader's data; return the octets of the logs.

        Raises:
            AssertionError: data differ; the text names the differences.
        """
        self.wait_even()
        self.stop()
        found = self.compare()
        for name, comparison in found:
            assert comparison.is_identical, f"{self.leader.name} and {name}: {comparison}"
        return found[0][1].octets

    def evidence(self) -> str:
        """Return the end of every member's log, for an error."""
        return "\n".join(f"--- {each.name}\n{each.node.server.log_tail()}" for each in self.members)


def _wait_reported(
    holds: Callable[[], bool], what: str, timeout_s: float, *members: FollowerSiteNode
) -> None:
    """Wait as `wait_until` does; ask members again that do not answer. A failure has the ends of the logs."""

    def asked() -> bool:
        for member in members:
            member.node.server.assert_alive()
        try:
            return holds()
        except (OSError, HTTPException, UnexpectedAnswer):
            return False

    try:
        wait_until(asked, what, timeout_s)
    except NotReady as late:
        logs = "\n".join(f"--- {each.name}\n{each.node.server.log_tail()}" for each in members)
        raise NotReady(f"{late}\n{logs}") from None
