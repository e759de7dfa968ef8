"""How two nodes of a replication meet: each proves that it has the secret, and neither sends it.

    follower                                             leader
    HELLO   version, kind, node_id, name, nonce  ->
                                                 <-      HELLO    version, node_id, name, nonce, proof
    PROOF   leadership, followed_epoch, led, uri, proof ->
                                                 <-      WELCOME  leadership, uri, former, proof   or   REFUSED  reason

A proof is an HMAC-SHA256, under the secret, of the channel, of who proves what at which step, of all messages before
as they were sent, and of the message's own other fields. Both nonces are in them from the second proof on, so nothing
of one handshake serves in another; the steps' names differ, so a peer that sends our own proof back proves nothing.

The channel is what a TLS connection has and no other one has; it is empty without TLS. Who stands between the two
nodes, and speaks TLS with each of them, has two connections: the proofs that it passes on do not fit, whether or
not a certificate is verified.

A link that passes on a client's connection names the listener and the client in HELLO, by the client's PROXY header. So
the proof covers both, and only a node that has the secret can say from where a client comes.

Nodes of a cluster meet in the same way: who connects is the follower here, and epochs are 0. Their HELLO has more
fields, which one that comes to follow or to fence leaves out.

Messages are JSON, and one value has one text: anything but what `msgspec` writes is refused, so every octet
counts. A later version may change all but HELLO's `version`.

Texts that come from a peer are printable and short, whoever it is; so they may be logged, but for a vhost, which is
as its clients named it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from leveret.model.errors import PeerError
from leveret.model.foreign_json import split_json

VERSION: Final = 2
"""Of what is said after the handshake: since 2 every message has a check."""
_HANDSHAKE_VERSION: Final = 1
HELLO: Final = 1
PROOF: Final = 2
WELCOME: Final = 3
REFUSED: Final = 4
NONCE_BYTES: Final = 32
MESSAGE_BYTES_MAX: Final = 4096
SECRETS_DIFFER: Final = "the secrets differ: copy .replication_secret from "
_OR_TLS_ENDS: Final = "; or TLS does not go from node to node, and something between the two ends it"
FORMER_LEADERS_MAX: Final = 8
_NAMES: Final = {HELLO: "HELLO", PROOF: "PROOF", WELCOME: "WELCOME", REFUSED: "REFUSED"}
_PROOF_BYTES: Final = 32
_REASON_CHARACTERS_MAX: Final = 500
_NAME_CHARACTERS_MAX: Final = 255

_Octets32 = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_NodeId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
_LeaderId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z")]
_Name = Annotated[str, Meta(min_length=1, max_length=_NAME_CHARACTERS_MAX)]
_Uri = Annotated[str, Meta(max_length=300)]
_Epoch = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Uris = Annotated[tuple[_Uri, ...], Meta(max_length=FORMER_LEADERS_MAX)]

_RunId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z")]
_Vhost = Annotated[str, Meta(max_length=_NAME_CHARACTERS_MAX)]
_Listener = Literal["", "amqp", "amqps", "stream", "streams", "http", "https"]
"""The listeners that a client's connection is passed on from, and to; empty for other links."""
_ClientHeader = Annotated[bytes, Meta(max_length=64)]
_Hops = Annotated[int, Meta(ge=0, le=16)]

Kind = Literal["follow", "fence", "member", "relay", "mirror", "proxy"]
"""The purpose of a link: to follow, or to report a newer leader to a previous one. In a cluster: to ask, to forward
clients' traffic to queues that are led here, or to mirror such queues. In both: to pass on the connection of one
client, whose own octets follow WELCOME."""
REPLICATION: Final[frozenset[Kind]] = frozenset(("follow", "fence", "proxy"))
CLUSTER: Final[frozenset[Kind]] = frozenset(("member", "relay", "mirror", "proxy"))


class HandshakeMessage(NamedTuple):
    """One message of the link: its type and its octets."""

    type: int
    payload: bytes


class Leadership(NamedTuple):
    """An epoch and the node that leads in it; compared as a pair.

    Two nodes that are promoted without having heard of each other may choose the same epoch. When they meet, both
    know which of the two leaderships is the later one.
    """

    epoch: int
    leader_id: str


class PassedOn(NamedTuple):
    """A client whose connection another node passes on.

    Attributes:
        listener: the listener that the client connected to, one of `_Listener`.
        client: the PROXY header of version 2 with the client's address.
        hops: the nodes that have passed it on before.
    """

    listener: str
    client: bytes
    hops: int = 0


class HandshakeError(PeerError):
    """The peer's message is not one of a handshake, or not the one that was due."""


class HandshakeDeclined(HandshakeError):
    """This side wants nothing to do with the peer; the text says why.

    Attributes:
        answer: tells the peer so; to be sent before hanging up.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.answer = refusal(reason)


class SecretsDiffer(HandshakeDeclined):
    """The peer has not this node's secret, or somebody between the two changed a message."""

    def __init__(self, *, over_tls: bool = False, kind: Kind = "follow") -> None:
        where = "the leader" if kind in REPLICATION else "another node of the cluster"
        super().__init__(SECRETS_DIFFER + where + (_OR_TLS_ENDS if over_tls else ""))


class HandshakeRefused(HandshakeError):
    """The peer wants nothing to do with this side; the text is its reason."""


@dataclass(frozen=True, slots=True)
class ProvenFollower:
    """Who came to a leader, or to a node of its cluster, proven.

    Attributes:
        kind: what for.
        name: of the node.
        epoch: of its own data.
        followed_epoch: of the leader that it followed last; 0 if it never did.
        led: whether it was a leader itself since then.
        uri: where it can be followed; empty if it cannot.
        leader_id: who leads, or led, in `epoch`; empty if that is not known.
        run_id: of a node of a cluster: this run of it.
        vhost: of a forwarding connection: where its clients are.
        passed_on: of a link that passes on a client's connection: that client.
    """

    kind: Kind
    node_id: str
    name: str
    epoch: int
    followed_epoch: int
    led: bool
    uri: str
    leader_id: str = ""
    run_id: str = ""
    vhost: str = ""
    passed_on: PassedOn | None = None

    @property
    def leadership(self) -> Leadership:
        """That of its data."""
        return Leadership(self.epoch, self.leader_id)


@dataclass(frozen=True, slots=True)
class ProvenLeader:
    """Who lets itself be followed, proven.

    Attributes:
        epoch: of its data.
        uri: where other nodes find it; empty if it does not say.
        leader_id: who leads in `epoch`, if that is another node; empty if that is not known.
        former: URIs of nodes that led before, the last one first.
        cluster: the cluster whose node has, or had, these data; empty for a node alone.
    """

    node_id: str
    name: str
    epoch: int
    uri: str
    leader_id: str = ""
    former: tuple[str, ...] = ()
    cluster: str = ""

    @property
    def leadership(self) -> Leadership:
        """That of its data, or a later one that it has heard of."""
        return Leadership(self.epoch, self.leader_id)


class _Hello(msgspec.Struct, frozen=True, omit_defaults=True, rename={"run_id": "incarnation"}):
    version: int
    kind: Kind
    node_id: _NodeId
    name: _Name
    nonce: _Octets32
    run_id: _RunId = ""
    vhost: _Vhost = ""
    listener: _Listener = ""
    client: _ClientHeader = b""
    hops: _Hops = 0

    @property
    def passed_on(self) -> PassedOn | None:
        """The client whose connection is passed on."""
        return PassedOn(self.listener, self.client, self.hops) if self.kind == "proxy" else None


class _LeaderHello(msgspec.Struct, frozen=True):
    version: int
    node_id: _NodeId
    name: _Name
    nonce: _Octets32
    proof: _Octets32


class _Proof(msgspec.Struct, frozen=True):
    epoch: _Epoch
    leader_id: _LeaderId
    followed_epoch: _Epoch
    led: bool
    uri: _Uri
    proof: _Octets32


class _Welcome(msgspec.Struct, frozen=True, omit_defaults=True):
    epoch: _Epoch
    leader_id: _LeaderId
    uri: _Uri
    former: _Uris
    proof: _Octets32
    cluster: Annotated[str, Meta(max_length=64)] = ""


class _Refused(msgspec.Struct, frozen=True):
    reason: Annotated[str, Meta(max_length=_REASON_CHARACTERS_MAX)]


class _AnyHello(msgspec.Struct, frozen=True):
    """What a HELLO of every version has."""

    version: int
    kind: Any = None


_Decoded = TypeVar("_Decoded", _Hello, _LeaderHello, _Proof, _Welcome, _Refused)
_Proven = TypeVar("_Proven", _LeaderHello, _Proof, _Welcome)
_UNPROVEN: Final = bytes(_PROOF_BYTES)


def refusal(reason: str) -> HandshakeMessage:
    """The message that ends a handshake, or that a leader sends instead of WELCOME."""
    return HandshakeMessage(
        REFUSED, msgspec.json.encode(_Refused(_printable(reason)[:_REASON_CHARACTERS_MAX]))
    )


class LeaderHandshake:
    """The side that was connected to: HELLO and PROOF come in, then `welcome` or `refusal` goes out.

    Attributes:
        follower: who is there, once that is proven.
    """

    def __init__(
        self,
        secret: bytes,
        *,
        node_id: str,
        name: str,
        nonce: bytes,
        channel: bytes = b"",
        kinds: frozenset[Kind] = REPLICATION,
    ) -> None:
        """`nonce` is `NONCE_BYTES` random octets, never used before; `channel` is the connection's, see the module.

        `kinds` is what a peer may come for.
        """
        self._transcript = _Transcript(secret, channel)
        self._kinds = kinds
        self._node_id = node_id
        self._name = _as_name(name)
        self._nonce = nonce
        self._hello: _Hello | None = None
        self.follower: ProvenFollower | None = None

    def answer_hello(self, message: HandshakeMessage) -> HandshakeMessage:
        """This side's HELLO, for the first message of the peer.

        Raises:
            HandshakeDeclined: the peer is of another version, or this very node, or comes to the wrong listener.
            HandshakeError: it is no HELLO.
        """
        if self._hello is not None:
            raise HandshakeError("a second HELLO came in a handshake of the replication")
        _check_version(message)
        hello = _decode(message, HELLO, _Hello)
        if bool(hello.listener) is not (hello.kind == "proxy"):
            raise HandshakeError(
                "HELLO of the replication names a listener if and only if it passes on a client"
            )
        if hello.kind not in self._kinds:
            raise HandshakeDeclined(
                f"this port serves links of kind {', '.join(sorted(self._kinds))}, not '{hello.kind}': see "
                "replication.port and cluster.port"
            )
        _check_is_other(hello, self._node_id, self._nonce, hello.kind)
        self._hello = hello
        self._transcript.kind = hello.kind
        self._transcript.add(message)
        answer = _LeaderHello(hello.version, self._node_id, self._name, self._nonce, _UNPROVEN)
        return self._transcript.prove(HELLO, answer)

    def take_proof(self, message: HandshakeMessage) -> ProvenFollower:
        """Who the peer is, for its second message.

        Raises:
            SecretsDiffer: the proof is wrong.
            HandshakeRefused: the peer declines; it found that the secrets differ, for instance.
            HandshakeError: it is no PROOF.
        """
        if self._hello is None or self.follower is not None:
            raise HandshakeError("no PROOF is due in this handshake of the replication")
        _check_not_refused(message)
        proof = _decode(message, PROOF, _Proof)
        self._transcript.check(PROOF, proof)
        self._transcript.add(message)
        hello = self._hello
        self.follower = ProvenFollower(
            hello.kind,
            hello.node_id,
            hello.name,
            proof.epoch,
            proof.followed_epoch,
            proof.led,
            proof.uri,
            proof.leader_id,
            hello.run_id,
            hello.vhost,
            hello.passed_on,
        )
        return self.follower

    def welcome(
        self, *, leadership: Leadership, uri: str, former: Iterable[str] = (), cluster: str = ""
    ) -> HandshakeMessage:
        """The end, once `follower` is known and may stay; to send it away, see `refusal`."""
        if self.follower is None:
            raise RuntimeError("welcome before the peer has proven itself")
        welcome = _Welcome(*leadership, uri, tuple(former)[:FORMER_LEADERS_MAX], _UNPROVEN, cluster)
        return self._transcript.prove(WELCOME, welcome)


class FollowerHandshake:
    """The side that connects: `hello` goes out, then HELLO and WELCOME come in."""

    def __init__(
        self,
        secret: bytes,
        *,
        kind: Kind,
        node_id: str,
        name: str,
        nonce: bytes,
        channel: bytes = b"",
        run_id: str = "",
        vhost: str = "",
        passed_on: PassedOn | None = None,
    ) -> None:
        """`nonce` is `NONCE_BYTES` random octets, never used before; `channel` is the connection's, see the module.

        A node of a cluster tells its `run_id`, and for a forwarding connection the `vhost`; a node that passes on
        a client's connection names that client.
        """
        self._transcript = _Transcript(secret, channel)
        self._transcript.kind = kind
        self._node_id = node_id
        self._nonce = nonce
        hello = _Hello(_version(kind), kind, node_id, _as_name(name), nonce, run_id, vhost)
        if passed_on is not None:
            listener, client, hops = passed_on
            hello = msgspec.structs.replace(hello, listener=listener, client=client, hops=hops)
        self._opening = HandshakeMessage(HELLO, msgspec.json.encode(hello))
        self._is_opened = False
        self._leader: _LeaderHello | None = None

    def hello(self) -> HandshakeMessage:
        """The first message."""
        return self._opening

    def answer_hello(
        self, message: HandshakeMessage, *, leadership: Leadership, followed_epoch: int, led: bool, uri: str
    ) -> HandshakeMessage:
        """This side's PROOF, for the first message of the peer, who has proven itself by it; see `ProvenFollower`.

        Raises:
            SecretsDiffer: the peer's proof is wrong.
            HandshakeDeclined: the peer is of another version, or this very node.
            HandshakeRefused: the peer declines.
            HandshakeError: it is no HELLO.
        """
        if self._is_opened:
            raise HandshakeError("a second HELLO came in a handshake of the replication")
        self._is_opened = True
        _check_not_refused(message)
        _check_version(message, self._transcript.kind)
        hello = _decode(message, HELLO, _LeaderHello)
        _check_is_other(hello, self._node_id, self._nonce, self._transcript.kind)
        self._transcript.add(self._opening)
        self._transcript.check(HELLO, hello)
        self._transcript.add(message)
        self._leader = hello
        return self._transcript.prove(PROOF, _Proof(*leadership, followed_epoch, led, uri, _UNPROVEN))

    def take_welcome(self, message: HandshakeMessage) -> ProvenLeader:
        """Who the peer is and that this side may stay, for its second message.

        Raises:
            HandshakeRefused: it may not.
            SecretsDiffer: the proof is wrong: somebody between the two changed a message.
            HandshakeError: it is no WELCOME.
        """
        if self._leader is None:
            raise HandshakeError("no WELCOME is due in this handshake of the replication")
        _check_not_refused(message)
        welcome = _decode(message, WELCOME, _Welcome)
        self._transcript.check(WELCOME, welcome)
        leader, self._leader = self._leader, None
        return ProvenLeader(
            leader.node_id,
            leader.name,
            welcome.epoch,
            welcome.uri,
            welcome.leader_id,
            welcome.former,
            welcome.cluster,
        )


class _Transcript:
    """The messages so far, and proofs over them.

    Attributes:
        kind: what the peer that connected came for, as far as it has said so.
    """

    def __init__(self, secret: bytes, channel: bytes) -> None:
        if len(secret) < _PROOF_BYTES:
            raise ValueError(f"a secret has {_PROOF_BYTES} octets or more")
        self.kind: Kind = "follow"
        self._secret = secret
        self._said = len(channel).to_bytes(4) + channel
        self._is_over_tls = bool(channel)

    def add(self, message: HandshakeMessage) -> None:
        """What was said, by either side; each with its length, so that two never look like one."""
        self._said += message.type.to_bytes(1) + len(message.payload).to_bytes(4) + message.payload

    def prove(self, type: int, unproven: _Proven) -> HandshakeMessage:
        """The message with its proof in it; from now on it was said."""
        proven = msgspec.structs.replace(unproven, proof=self._proof(type, unproven))
        message = HandshakeMessage(type, msgspec.json.encode(proven))
        self.add(message)
        return message

    def check(self, type: int, proven: _Proven) -> None:
        """Raises SecretsDiffer: the proof in it is wrong."""
        if not hmac.compare_digest(self._proof(type, proven), proven.proof):
            raise SecretsDiffer(over_tls=self._is_over_tls, kind=self.kind)

    def _proof(self, type: int, message: _Proven) -> bytes:
        role = "follower" if type == PROOF else "leader"
        label = f"leveret replication {_version(self.kind)}: {role}: {_NAMES[type]}\n".encode()
        own = msgspec.json.encode(msgspec.structs.replace(message, proof=_UNPROVEN))
        return hmac.digest(self._secret, label + self._said + own, hashlib.sha256)


def _version(kind: object) -> int:
    """The version of a link of that kind. Nothing follows the handshake of one that fences: any leader is fenced."""
    return _HANDSHAKE_VERSION if kind == "fence" else VERSION


def _check_version(message: HandshakeMessage, kind: Kind | None = None) -> None:
    """Raise if the peer's version is not that of a link of this kind; None: of the kind that the peer says."""
    _check_type(message, HELLO)
    try:
        hello = split_json(message.payload, _AnyHello)
    except msgspec.DecodeError as error:
        raise _malformed(HELLO, error) from None
    here = _version(kind or hello.kind)
    if hello.version != here:
        raise HandshakeDeclined(
            f"the replication speaks version {hello.version} there and {here} here: upgrade the older node"
        )


def _check_is_other(hello: _Hello | _LeaderHello, node_id: str, nonce: bytes, kind: Kind) -> None:
    if hello.node_id == node_id and kind == "proxy":
        raise HandshakeDeclined(
            f"the node {_printable(hello.name)} would pass clients on to itself, or to a copy of its own data directory"
        )
    if hello.node_id == node_id and kind in CLUSTER:
        raise HandshakeDeclined(
            f"the node {_printable(hello.name)} has the same id: its data directory is a copy, or its "
            "cluster.advertised_uri leads here; start a new node of a cluster with an empty data directory"
        )
    if hello.node_id == node_id:
        raise HandshakeDeclined(
            f"the node {_printable(hello.name)} was told to follow itself, or a copy of its own data directory: "
            "name another node in replication.follow"
        )
    if hmac.compare_digest(hello.nonce, nonce):
        raise HandshakeDeclined("the peer sent this node's own nonce back")


def _check_not_refused(message: HandshakeMessage) -> None:
    if message.type == REFUSED:
        raise HandshakeRefused(_printable(_decode(message, REFUSED, _Refused).reason))


def _check_type(message: HandshakeMessage, due: int) -> None:
    if message.type != due:
        came = _NAMES.get(message.type, f"type {message.type}")
        raise HandshakeError(f"{came} came where {_NAMES[due]} was due in a handshake of the replication")
    if len(message.payload) > MESSAGE_BYTES_MAX:
        raise HandshakeError(f"{_NAMES[due]} of the replication has more than {MESSAGE_BYTES_MAX} octets")


def _decode(message: HandshakeMessage, due: int, struct: type[_Decoded]) -> _Decoded:
    """Raises HandshakeError: another message, or one that `msgspec` would not have written so."""
    _check_type(message, due)
    try:
        decoded = split_json(message.payload, struct)
    except msgspec.DecodeError as error:
        raise _malformed(due, error) from None
    if msgspec.json.encode(decoded) != message.payload:
        raise HandshakeError(
            f"{_NAMES[due]} of the replication is not written as version {VERSION} writes it"
        )
    for name in ("name", "uri", "former"):
        if not "".join(getattr(decoded, name, "")).isprintable():
            raise HandshakeError(f"{_NAMES[due]} of the replication has unprintable characters in its {name}")
    return decoded


def _malformed(type: int, error: Exception) -> HandshakeError:
    return HandshakeError(f"{_NAMES[type]} of the replication is malformed: {_printable(str(error))}")


def _as_name(text: str) -> str:
    """A node's own name as peers take it."""
    return _printable(text)[:_NAME_CHARACTERS_MAX] or "?"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
