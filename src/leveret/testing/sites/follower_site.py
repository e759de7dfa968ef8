"""A leader and its followers as real processes, each follower behind a link that a test can harm.

    with FollowerSite(folder, followers=2) as site:
        site.start()
        connect(LOOPBACK, site.leader.node.amqp_port)
        site.wait_even()
        site.leader.node.kill9()
        site.promote(site.followers[0])

Every member can lead and follow: it has ports, a data directory and a listener for followers of its own, whatever it
is at the moment. Members are operated as an operator does it, over the node's own socket.
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
    """A node answers, but not with what was asked for."""


class ApiAnswer(NamedTuple):
    """What the API said."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether it did what was asked."""
        return self.status < HTTPStatus.BAD_REQUEST

    def json(self) -> Any:
        """The document."""
        return json.loads(self.body)


class FollowedNode(Protocol):
    """A node that can be followed: another one of a replication, or one of a cluster."""

    @property
    def replication_port(self) -> int:
        """Where others follow it."""

    @property
    def data_dir(self) -> Path:
        """Where it keeps everything, its secret, too."""


class _Control(HTTPConnection):
    """To a node's own socket."""

    def __init__(self, path: str) -> None:
        super().__init__("node", timeout=_HTTP_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """See HTTPConnection."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class FollowerSiteNode:
    """One node of a replication, and the link on which it follows.

    Attributes:
        name: what it is called in statuses and logs.
        node: its process.
        replication_port: where others follow it.
        link: between this node and the one that it follows.
        scheme: of the place it follows, `tcp` or `tls`.
    """

    def __init__(self, name: str, folder: Path, config: Mapping[str, str]) -> None:
        """Prepare; nothing runs."""
        self.name = name
        self.scheme = "tcp"
        self.replication_port = free_port()
        self.node = LeveretProcess(
            folder / name, {"nodename": f"{name}@{LOOPBACK}", **config}, parent_dir=folder
        )
        self.link = LinkProxy(self.replication_port)

    @property
    def data_dir(self) -> Path:
        """Where it keeps everything."""
        return self.node.data_dir

    def close(self) -> None:
        """End the process and the link."""
        self.node.close()
        self.link.close()

    # -- what it is ---------------------------------------------------------------------------

    def lead(self, *, wait: bool = True) -> None:
        """Start as a leader."""
        self.node.arguments = self._entry()
        self.node.launch()
        if wait:
            self.node.wait_ready()

    def follow(self, leader: FollowedNode, *, secret: bool = True, wait: bool = True) -> None:
        """Start as a follower of another member, through this one's link; `secret`: copy that first."""
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
        """What the operator does once: copy the secret, readable for its owner only."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        mine = self.data_dir / SECRET_FILE
        mine.unlink(missing_ok=True)
        shutil.copyfile(leader.data_dir / SECRET_FILE, mine)
        mine.chmod(0o400)

    def wipe(self) -> None:
        """Remove all its data; it must not run."""
        assert not self.node.alive
        shutil.rmtree(self.data_dir, ignore_errors=True)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the process where it stands (SIGSTOP) while the block runs."""
        self.node.server.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.node.server.signal(signal.SIGCONT)

    # -- the operator -------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        """What the API has at a path below `/api/`.

        Raises:
            Declined: the node does not want to.
        """
        answer = self.ask("GET", path)
        if not answer.is_success:
            raise UnexpectedAnswer(f"{self.name}: {path}: {answer}")
        return answer.json()

    def ask(self, method: str, path: str, document: Any = None) -> ApiAnswer:
        """What the API answers, whatever that is.

        Raises:
            OSError: nobody does.
        """
        with short_path(self.data_dir) as socket_path, closing(_Control(socket_path)) as control:
            headers = {"Content-Type": "application/json"}
            control.request(method, f"/api/{path}", json.dumps(document), headers)
            answer = control.getresponse()
            return ApiAnswer(answer.status, answer.read())

    def status(self) -> dict[str, Any]:
        """What it is in the replication, and how that goes."""
        found: dict[str, Any] = self.get("replication/node")
        return found

    def promote(self, *, dry_run: bool = False, force: bool = False) -> dict[str, Any]:
        """Make this follower a leader, or only ask what would be lost; the answer, also if it is a refusal."""
        found: dict[str, Any] = self.ask(
            "POST", "replication/promote", {"dry_run": dry_run, "force": force}
        ).json()
        return found

    def divergent_messages(self) -> list[dict[str, Any]]:
        """Messages that were set aside, of all reports."""
        answer = self.ask("GET", "replication/divergent/messages")
        assert answer.is_success, answer
        return [json.loads(line) for line in answer.body.splitlines()]

    def row(self, follower: FollowerSiteNode) -> dict[str, Any] | None:
        """What this node tells of one that follows it; None while it is not connected."""
        rows = [row for row in self.status()["followers"] if row["name"] == follower.node_name]
        return rows[0] if rows else None

    @property
    def node_name(self) -> str:
        """Its name as other nodes tell it."""
        return self.node.config["nodename"]

    # -- waiting ------------------------------------------------------------------------------

    def wait_answers(self) -> None:
        """Wait until the API answers.

        Raises:
            NotReady: it does not, or the process has ended; with the end of its log.
        """

        def answers() -> bool:
            self.node.server.assert_alive()
            try:
                return bool(self.status())
            except (OSError, HTTPException, UnexpectedAnswer):
                return False

        try:
            wait_until(answers, f"an answer of {self.name}", PATIENCE_S)
        except NotReady as late:
            raise NotReady(f"{late}\n{self.node.server.log_tail()}") from None

    def wait_in_sync(self, follower: FollowerSiteNode, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a follower of this node streams and is in sync."""

        def in_sync() -> bool:
            row = self.row(follower)
            return row is not None and row["state"] == "streaming" and bool(row["in_sync"])

        _wait_reported(in_sync, f"{follower.name} in sync with {self.name}", timeout_s, self, follower)

    def wait_even(self, follower: FollowerSiteNode, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a follower of this node lacks nothing; means little unless nothing changes any more."""

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
        leader: who leads; set by `promote`.
        followers: who follows, running or not.
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
            value.add_note(self.reported())
        for member in self.members:
            member.close()

    def start(self) -> None:
        """Start the leader and its followers; wait until all are in sync."""
        self.leader.lead()
        for follower in self.followers:
            follower.follow(self.leader, wait=False)
        self.wait_in_sync()

    def promote(self, follower: FollowerSiteNode, *, force: bool = False) -> dict[str, Any]:
        """Promote; the links of all others, the old leader's too, lead to the new one from then on.

        Raises:
            AssertionError: it was refused.
        """
        result = follower.promote(force=force)
        assert result.get("promoted"), result
        follower.node.wait_ready()
        self._point_at(follower)
        return result

    def promote_by_restart(self, follower: FollowerSiteNode) -> None:
        """Promote as LavinMQ does it: the follower, which must be down, is started with the leader's flags."""
        follower.lead()
        self._point_at(follower)

    def _point_at(self, leader: FollowerSiteNode) -> None:
        self.followers = [member for member in self.members if member is not leader]
        self.leader = leader
        for other in self.followers:
            other.link.target_port = leader.replication_port
            other.link.cut()

    def wait_in_sync(self) -> None:
        """Wait until every follower is."""
        for follower in self.followers:
            self.leader.wait_in_sync(follower)

    def wait_even(self) -> None:
        """Wait until no follower lacks anything; nothing may change any more."""
        for follower in self.followers:
            self.leader.wait_even(follower)

    def stop(self) -> None:
        """End all in order, the leader first: it hands over what it has before it goes."""
        for member in (self.leader, *self.followers):
            if member.node.alive:
                member.node.stop()

    def compare(self) -> list[tuple[str, Comparison]]:
        """How each follower's directory is beside the leader's; all must be down."""
        return [(each.name, compare(self.leader.data_dir, each.data_dir)) for each in self.followers]

    def assert_identical(self) -> int:
        """End all; every follower must have what the leader has. Returns the octets of logs that one of them has.

        Raises:
            AssertionError: says what differs.
        """
        self.wait_even()
        self.stop()
        found = self.compare()
        for name, comparison in found:
            assert comparison.is_identical, f"{self.leader.name} and {name}: {comparison}"
        return found[0][1].octets

    def reported(self) -> str:
        """The end of every member's log, for an error."""
        return "\n".join(f"--- {each.name}\n{each.node.server.log_tail()}" for each in self.members)


def _wait_reported(
    holds: Callable[[], bool], what: str, timeout_s: float, *members: FollowerSiteNode
) -> None:
    """As `wait_until`; a failure tells the ends of the logs. Members that do not answer are asked again."""

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
