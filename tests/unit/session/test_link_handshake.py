"""Two nodes meet: each learns who the other is, and nobody else gets in, whatever is sent."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import PeerError
from leveret.session.link_handshake import (
    CLUSTER,
    HELLO,
    MESSAGE_BYTES_MAX,
    PROOF,
    REFUSED,
    WELCOME,
    FollowerHandshake,
    HandshakeDeclined,
    HandshakeError,
    HandshakeMessage,
    HandshakeRefused,
    Kind,
    LeaderHandshake,
    Leadership,
    PassedOn,
    ProvenFollower,
    ProvenLeader,
    SecretsDiffer,
    refusal,
)

SECRET: Final = b"c2VjcmV0IG9mIHNpeHR5LWZvdXIgY2hhcmFjdGVycyE="
OTHER_SECRET: Final = SECRET.replace(b"c2Vj", b"c3Vj")
LEADER_URI: Final = "tcp://10.0.0.1:5679"
FOLLOWER_URI: Final = "tls://[fd00::2]:5679"

Change = Callable[[HandshakeMessage], HandshakeMessage]


def leader_side(secret: bytes = SECRET, **changed: Any) -> LeaderHandshake:
    return LeaderHandshake(
        secret, **{"node_id": "leader-1", "name": "leveret@a", "nonce": bytes(range(32))} | changed
    )


def follower_side(secret: bytes = SECRET, **changed: Any) -> FollowerHandshake:
    given = {"kind": "follow", "node_id": "follower_2", "name": "leveret@ü", "nonce": bytes(range(32, 64))}
    return FollowerHandshake(secret, **given | changed)


def prove(follower: FollowerHandshake, message: HandshakeMessage) -> HandshakeMessage:
    return follower.answer_hello(
        message, leadership=Leadership(3, "leader-0"), followed_epoch=2, led=True, uri=FOLLOWER_URI
    )


class Met(NamedTuple):
    """What was said, and what each side knows of the other."""

    said: list[HandshakeMessage]
    follower: ProvenFollower
    leader: ProvenLeader


def meet(
    leader: LeaderHandshake, follower: FollowerHandshake, change: Change = lambda message: message
) -> Met:
    """A whole handshake; `change` is somebody between the two."""
    said = [follower.hello()]
    said.append(leader.answer_hello(change(said[-1])))
    said.append(prove(follower, change(said[-1])))
    known = leader.take_proof(change(said[-1]))
    said.append(leader.welcome(leadership=Leadership(7, "leader-1"), uri=LEADER_URI, former=["tcp://old:1"]))
    return Met(said, known, follower.take_welcome(change(said[-1])))


@pytest.mark.parametrize("kind", ["follow", "fence"])
def test_each_side_learns_who_the_other_is(kind: Kind) -> None:
    met = meet(leader_side(), follower_side(kind=kind))
    assert met.follower == ProvenFollower(
        kind, "follower_2", "leveret@ü", 3, 2, True, FOLLOWER_URI, "leader-0"
    )
    assert met.leader == ProvenLeader("leader-1", "leveret@a", 7, LEADER_URI, "leader-1", ("tcp://old:1",))
    assert [message.type for message in met.said] == [HELLO, HELLO, PROOF, WELCOME]


def test_a_client_that_is_passed_on_is_named_under_the_proof() -> None:
    passed_on = PassedOn("amqps", b"header of 10.0.0.7", 2)
    assert (
        meet(leader_side(), follower_side(kind="proxy", passed_on=passed_on)).follower.passed_on == passed_on
    )
    for changed in ({"listener": "http"}, {"client": base64.b64encode(b"another").decode()}, {"hops": 1}):
        with pytest.raises(SecretsDiffer):
            meet(
                leader_side(),
                follower_side(kind="proxy", passed_on=passed_on),
                lambda message: edited(message, **changed) if "listener" in str(message.payload) else message,  # noqa: B023
            )


def test_who_follows_names_no_client_and_who_passes_one_on_does() -> None:
    for side in (follower_side(passed_on=PassedOn("amqp", b"")), follower_side(kind="proxy")):
        with pytest.raises(HandshakeError, match="if and only if"):
            leader_side().answer_hello(side.hello())


def test_the_secret_is_never_sent() -> None:
    said = b"".join(message.payload for message in meet(leader_side(), follower_side()).said)
    for form in (SECRET, base64.b64decode(SECRET), SECRET.hex().encode(), base64.b64encode(SECRET)[:-4]):
        assert form not in said


def test_a_nonce_makes_every_proof_another() -> None:
    first = meet(leader_side(), follower_side()).said
    again = meet(leader_side(), follower_side()).said
    assert first == again, "nothing but its arguments decides what is said"
    for sides in (
        (leader_side(nonce=b"n" * 32), follower_side()),
        (leader_side(), follower_side(nonce=b"n" * 32)),
    ):
        proofs = [msgspec.json.decode(message.payload)["proof"] for message in meet(*sides).said[1:]]
        assert not {msgspec.json.decode(message.payload)["proof"] for message in first[1:]} & set(proofs)


def test_a_proof_is_over_who_proves_what_and_all_that_was_said() -> None:
    """Worked out by hand, so that a node of another release can be held to it."""
    said = meet(leader_side(), follower_side()).said
    before = bytes(4)  # No channel.
    for message, who in zip(said, ("", "leader: HELLO", "follower: PROOF", "leader: WELCOME"), strict=True):
        fields = msgspec.json.decode(message.payload)
        if who:
            proof = base64.b64decode(fields["proof"])
            own = edited(message, proof=base64.b64encode(bytes(32)).decode()).payload
            assert (
                hmac.digest(SECRET, f"leveret replication 2: {who}\n".encode() + before + own, "sha256")
                == proof
            )
        before += bytes((message.type,)) + len(message.payload).to_bytes(4, "big") + message.payload


# --- who is not let in ---------------------------------------------------------------------------


def test_a_leader_with_another_secret_is_found_out_by_the_follower() -> None:
    follower = follower_side()
    with pytest.raises(
        SecretsDiffer, match=r"^the secrets differ: copy \.replication_secret from the leader$"
    ) as told:
        prove(follower, leader_side(OTHER_SECRET).answer_hello(follower.hello()))
    with pytest.raises(HandshakeRefused, match="the secrets differ"):
        follower_side().answer_hello(
            told.value.answer, leadership=Leadership(1, ""), followed_epoch=0, led=False, uri=""
        )


def test_a_follower_with_another_secret_is_found_out_by_the_leader() -> None:
    """One that does not mind what the leader's proof is."""
    follower, leader = follower_side(OTHER_SECRET), leader_side()
    leader.answer_hello(follower.hello())
    forged = prove(follower, leader_side(OTHER_SECRET).answer_hello(follower.hello()))
    with pytest.raises(SecretsDiffer):
        leader.take_proof(forged)
    assert leader.follower is None
    with pytest.raises(RuntimeError):
        leader.welcome(leadership=Leadership(7, "leader-1"), uri="")


def test_the_leader_hears_from_a_follower_that_found_the_secrets_to_differ() -> None:
    leader = leader_side()
    leader.answer_hello(follower_side().hello())
    with pytest.raises(HandshakeRefused, match="the secrets differ"):
        leader.take_proof(SecretsDiffer().answer)


def edited(message: HandshakeMessage, **changed: Any) -> HandshakeMessage:
    return HandshakeMessage(message.type, msgspec.json.encode(msgspec.json.decode(message.payload) | changed))


@pytest.mark.parametrize("theirs", [0, 1, 3, -1, 10**30])
def test_another_version_is_declined_by_either_side(theirs: int) -> None:
    told = rf"version {theirs} there and 2 here: upgrade the older node"
    hello = HandshakeMessage(HELLO, msgspec.json.encode({"unknown": [1], "version": theirs}))
    with pytest.raises(HandshakeError, match=told):
        leader_side().answer_hello(hello)
    with pytest.raises(HandshakeError, match=told):
        prove(follower_side(), hello)


def test_a_declined_peer_is_told_why() -> None:
    with pytest.raises(HandshakeDeclined) as declined:
        leader_side().answer_hello(HandshakeMessage(HELLO, b'{"version":1}'))
    with pytest.raises(HandshakeRefused, match="speaks version 1 there and 2 here"):
        prove(follower_side(), declined.value.answer)


def test_a_leader_may_send_away_whom_it_knows() -> None:
    follower, leader = follower_side(), leader_side()
    leader.take_proof(prove(follower, leader.answer_hello(follower.hello())))
    with pytest.raises(HandshakeRefused, match=r"^the epoch here is 9$"):
        follower.take_welcome(refusal("the epoch here is 9"))


def test_a_node_does_not_follow_itself() -> None:
    follower = follower_side(node_id="leader-1")
    with pytest.raises(HandshakeDeclined, match="told to follow itself"):
        leader_side().answer_hello(follower.hello())
    with pytest.raises(HandshakeDeclined, match="told to follow itself"):
        prove(follower, leader_side().answer_hello(follower_side().hello()))


# --- a peer without the secret that uses our own words -------------------------------------------


def test_a_nonce_that_is_sent_back_is_declined() -> None:
    follower = follower_side()
    with pytest.raises(HandshakeDeclined, match="own nonce"):
        leader_side(nonce=bytes(range(32, 64))).answer_hello(follower.hello())
    echoed = edited(
        leader_side().answer_hello(follower.hello()), nonce=base64.b64encode(bytes(range(32, 64))).decode()
    )
    with pytest.raises(HandshakeDeclined, match="own nonce"):
        prove(follower, echoed)


def test_a_proof_that_is_sent_back_proves_nothing() -> None:
    follower, leader = follower_side(), leader_side()
    hello = leader.answer_hello(follower.hello())
    own = msgspec.json.decode(hello.payload)["proof"]
    proof = prove(follower, hello)
    with pytest.raises(SecretsDiffer):
        leader.take_proof(edited(proof, proof=own))
    theirs = msgspec.json.decode(proof.payload)["proof"]
    with pytest.raises(SecretsDiffer):
        follower.take_welcome(
            HandshakeMessage(
                WELCOME,
                msgspec.json.encode(
                    {"epoch": 7, "leader_id": "", "uri": LEADER_URI, "former": [], "proof": theirs}
                ),
            )
        )


@pytest.mark.parametrize(("ours", "theirs"), [(b"one", b"other"), (b"one", b""), (b"", b"other")])
def test_who_passes_on_what_was_said_on_another_channel_is_found_out(ours: bytes, theirs: bytes) -> None:
    """Two TLS connections and somebody between them, who has no need to know the secret."""
    assert meet(leader_side(channel=ours), follower_side(channel=ours))
    with pytest.raises(SecretsDiffer):
        meet(leader_side(channel=ours), follower_side(channel=theirs))


def test_of_two_reigns_of_one_epoch_both_sides_call_the_same_the_later_one() -> None:
    assert Leadership(2, "a") < Leadership(2, "b") < Leadership(3, "a")


def test_a_node_is_of_no_use_to_prove_the_secret_to_itself() -> None:
    """Somebody connects to a node that connects to him, and passes its words on to it under other names."""
    node: Any = {"node_id": "n", "name": "n"}
    follower, leader = follower_side(**node), leader_side(**node)
    with pytest.raises(HandshakeDeclined):
        prove(follower, leader.answer_hello(edited(follower.hello(), node_id="x")))
    follower = follower_side(**node)
    answer = leader_side(**node).answer_hello(edited(follower.hello(), node_id="x"))
    with pytest.raises(SecretsDiffer):
        prove(follower, edited(answer, node_id="y"))


def test_what_was_recorded_opens_nothing_later() -> None:
    recorded = meet(leader_side(), follower_side()).said
    leader = leader_side(nonce=b"m" * 32)
    leader.answer_hello(recorded[0])
    with pytest.raises(SecretsDiffer):
        leader.take_proof(recorded[2])
    with pytest.raises(SecretsDiffer):
        prove(follower_side(nonce=b"m" * 32), recorded[1])


@pytest.mark.parametrize(
    ("step", "changed"),
    [
        (0, {"node_id": "another"}),
        (0, {"name": "another"}),
        (1, {"node_id": "another"}),
        (1, {"name": "another"}),
        (2, {"epoch": 4}),
        (2, {"leader_id": "another"}),
        (2, {"followed_epoch": 3}),
        (2, {"led": False}),
        (2, {"uri": ""}),
        (3, {"epoch": 8}),
        (3, {"leader_id": ""}),
        (3, {"uri": ""}),
        (3, {"former": []}),
    ],
)
def test_every_field_is_proven(step: int, changed: dict[str, Any]) -> None:
    number = iter(range(4))
    with pytest.raises(SecretsDiffer):
        meet(
            leader_side(),
            follower_side(),
            lambda message: edited(message, **changed) if next(number) == step else message,
        )


def test_a_kind_that_is_changed_on_its_way_is_declined() -> None:
    """One that follows is of another version than one that fences; both are proven."""
    for changed in ({"kind": "fence"}, {"kind": "fence", "version": 1}):
        number = iter(range(4))
        with pytest.raises(HandshakeDeclined):
            meet(
                leader_side(),
                follower_side(),
                lambda message: edited(message, **changed) if next(number) == 0 else message,  # noqa: B023
            )


# --- octets that nobody meant --------------------------------------------------------------------


@given(step=st.integers(0, 3), bit=st.integers(0, 8 * 400), name=st.text(max_size=40))
def test_a_flipped_bit_in_any_message_is_refused(step: int, bit: int, name: str) -> None:
    number = iter(range(4))

    def flip(message: HandshakeMessage) -> HandshakeMessage:
        if next(number) != step:
            return message
        octets = bytearray(message.payload)
        octets[bit // 8 % len(octets)] ^= 1 << bit % 8
        return HandshakeMessage(message.type, bytes(octets))

    with pytest.raises(PeerError):
        meet(leader_side(), follower_side(name=name), flip)


def test_every_single_bit_counts() -> None:
    """The same without chance, for one handshake."""
    sizes = [len(message.payload) for message in meet(leader_side(), follower_side()).said]
    for step, size in enumerate(sizes):
        for bit in range(8 * size):
            number = iter(range(4))

            def flip(
                message: HandshakeMessage, bit: int = bit, step: int = step, number: Any = number
            ) -> HandshakeMessage:
                if next(number) != step:
                    return message
                octets = bytearray(message.payload)
                octets[bit // 8] ^= 1 << bit % 8
                return HandshakeMessage(message.type, bytes(octets))

            with pytest.raises(PeerError):
                meet(leader_side(), follower_side(), flip)


@given(bit=st.integers(0, 8 * 400), reason=st.text(max_size=40))
def test_a_flipped_bit_in_a_refusal_leaves_it_one(bit: int, reason: str) -> None:
    octets = bytearray(refusal(reason).payload)
    octets[bit // 8 % len(octets)] ^= 1 << bit % 8
    with pytest.raises(HandshakeError) as refused:
        prove(follower_side(), HandshakeMessage(REFUSED, bytes(octets)))
    assert str(refused.value).isprintable()


@given(types=st.lists(st.integers(0, 255), min_size=3, max_size=3), payload=st.binary(max_size=200))
def test_any_octets_are_refused_at_any_step(types: list[int], payload: bytes) -> None:
    for kind in types:
        message = HandshakeMessage(kind, payload)
        follower, leader = follower_side(), leader_side()
        with pytest.raises(HandshakeError):
            leader.take_proof(message)
        with pytest.raises(HandshakeError):
            leader.answer_hello(message)
        hello = leader.answer_hello(follower.hello())
        with pytest.raises(HandshakeError):
            leader.take_proof(message)
        with pytest.raises(HandshakeError):
            follower.take_welcome(message)
        prove(follower, hello)
        with pytest.raises(HandshakeError):
            follower.take_welcome(message)
        with pytest.raises(HandshakeError):
            prove(follower_side(), message)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (HandshakeMessage(WELCOME, b"{}"), "WELCOME came where HELLO was due"),
        (HandshakeMessage(99, b"{}"), "type 99 came where HELLO was due"),
        (HandshakeMessage(HELLO, b""), "HELLO of the replication is malformed"),
        (
            HandshakeMessage(HELLO, b'{"version":2}'),
            "HELLO of the replication is malformed: .*required field `kind`",
        ),
        (HandshakeMessage(HELLO, b'{"version":2,"x":' + b"[" * 4000), "malformed"),
        (HandshakeMessage(HELLO, b" " * (MESSAGE_BYTES_MAX + 1)), f"more than {MESSAGE_BYTES_MAX} octets"),
        (edited(follower_side().hello(), kind="lead"), "malformed: Invalid enum value 'lead'"),
        (edited(follower_side().hello(), node_id="a b"), "malformed"),
        (edited(follower_side().hello(), node_id="a\n"), "malformed"),
        (edited(follower_side().hello(), node_id=""), "malformed"),
        (edited(follower_side().hello(), name=""), "malformed"),
        (edited(follower_side().hello(), name="a\nb"), "unprintable characters in its name"),
        (edited(follower_side().hello(), nonce="AAAA"), "malformed"),
        (edited(follower_side().hello(), more=1), "not written as version 2 writes it"),
        (
            HandshakeMessage(HELLO, follower_side().hello().payload + b"\n"),
            "not written as version 2 writes it",
        ),
    ],
)
def test_what_is_wrong_with_a_message_is_told(message: HandshakeMessage, told: str) -> None:
    with pytest.raises(HandshakeError, match=told) as refused:
        leader_side().answer_hello(message)
    assert str(refused.value).isprintable()


def test_no_step_is_taken_twice() -> None:
    follower, leader = follower_side(), leader_side()
    hello = leader.answer_hello(follower.hello())
    with pytest.raises(HandshakeError, match="second HELLO"):
        leader.answer_hello(follower.hello())
    proof = prove(follower, hello)
    with pytest.raises(HandshakeError, match="second HELLO"):
        prove(follower, hello)
    leader.take_proof(proof)
    with pytest.raises(HandshakeError, match="no PROOF is due"):
        leader.take_proof(proof)
    welcome = leader.welcome(leadership=Leadership(7, "leader-1"), uri="")
    follower.take_welcome(welcome)
    with pytest.raises(HandshakeError, match="no WELCOME is due"):
        follower.take_welcome(welcome)


def test_a_node_s_own_name_and_reasons_become_what_peers_take() -> None:
    for name in ("", "\n", "a" * 1000, "\u2028"):
        assert meet(leader_side(name=name), follower_side(name=name)).leader.name.isprintable()
    with pytest.raises(HandshakeRefused) as refused, suppress(HandshakeDeclined):
        prove(follower_side(), refusal("a\nb" * 1000))
    assert str(refused.value) == ("a?b" * 1000)[:500]


def test_a_secret_that_is_too_short_is_no_secret() -> None:
    for side in (leader_side, follower_side):
        with pytest.raises(ValueError, match="32 octets"):
            side(b"x" * 31)


def test_the_secret_is_in_no_text_of_a_side() -> None:
    for side in (leader_side(), follower_side()):
        assert SECRET.decode() not in repr(side) + repr(vars(side))


def test_proofs_are_compared_without_telling_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def noted(ours: bytes, theirs: bytes) -> bool:
        compared.append((ours, theirs))
        return compare(ours, theirs)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    said = meet(leader_side(), follower_side()).said
    proofs = [base64.b64decode(msgspec.json.decode(message.payload)["proof"]) for message in said[1:]]
    assert all((proof, proof) in compared for proof in proofs)


# --- nodes of a cluster --------------------------------------------------------------------------


def cluster_side(secret: bytes = SECRET, **changed: Any) -> FollowerHandshake:
    return follower_side(secret, **{"kind": "relay", "run_id": "i-7_", "vhost": "a\n/b"} | changed)


def met_by(leader: LeaderHandshake, node: FollowerHandshake) -> ProvenFollower:
    hello = leader.answer_hello(node.hello())
    return leader.take_proof(
        node.answer_hello(hello, leadership=Leadership(0, ""), followed_epoch=0, led=False, uri="")
    )


@pytest.mark.parametrize("kind", sorted(CLUSTER - {"proxy"}))
def test_a_node_of_a_cluster_is_known_with_its_run_and_its_vhost(kind: Kind) -> None:
    known = met_by(leader_side(kinds=CLUSTER), cluster_side(kind=kind))
    assert (known.kind, known.name, known.run_id, known.vhost) == (kind, "leveret@ü", "i-7_", "a\n/b")
    assert met_by(leader_side(kinds=CLUSTER), follower_side(kind=kind)).vhost == ""


def test_who_fences_says_hello_as_ever_so_that_a_leader_of_the_version_before_is_fenced() -> None:
    nonce = base64.b64encode(bytes(range(32, 64))).decode()
    for kind, version in (("follow", 2), ("fence", 1)):
        begins = f'{{"version":{version},"kind":"{kind}",'
        expected = f'{begins}"node_id":"follower_2","name":"leveret@ü","nonce":"{nonce}"}}'
        assert follower_side(kind=kind).hello().payload.decode() == expected


@pytest.mark.parametrize("changed", [{"incarnation": "j"}, {"vhost": "c"}, {"vhost": ""}, {"kind": "mirror"}])
def test_what_a_node_of_a_cluster_says_of_itself_cannot_be_changed(changed: dict[str, str]) -> None:
    node, leader = cluster_side(), leader_side(kinds=CLUSTER)
    fields = {**msgspec.json.decode(node.hello().payload), **changed}
    said = {name: value for name, value in fields.items() if value}
    answer = leader.answer_hello(HandshakeMessage(HELLO, msgspec.json.encode(said)))
    with pytest.raises(SecretsDiffer, match=r"copy \.replication_secret from another node of the cluster$"):
        node.answer_hello(answer, leadership=Leadership(0, ""), followed_epoch=0, led=False, uri="")


def test_who_comes_to_the_wrong_door_is_told_so() -> None:
    with pytest.raises(
        HandshakeDeclined, match=r"links of kind fence, follow, proxy, not 'relay': see replication\.port"
    ):
        leader_side().answer_hello(cluster_side().hello())
    with pytest.raises(HandshakeDeclined, match=r"links of kind member, mirror, proxy, relay, not 'follow'"):
        leader_side(kinds=CLUSTER).answer_hello(follower_side().hello())


def test_a_copy_of_a_node_s_data_is_no_node_of_its_own() -> None:
    with pytest.raises(HandshakeDeclined, match="has the same id: its data directory is a copy"):
        leader_side(kinds=CLUSTER).answer_hello(cluster_side(node_id="leader-1").hello())
