"""core.broker.access: RabbitMQ's password hashes and permissions."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.broker.access import (
    check_password,
    check_patterns,
    hash_password,
    is_allowed,
    matches,
    permission_of,
    topic_pattern,
)
from leveret.model.definitions import Definitions, Permission, Put, User
from leveret.model.errors import InvalidCommand

PASSWORD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


def user(password_hash: str, algorithm: str = "rabbit_password_hashing_sha256") -> User:
    return User(name="u", password_hash=password_hash, hashing_algorithm=algorithm)


def test_a_hash_is_base64_of_the_salt_and_sha256_of_salt_and_password() -> None:
    salt = bytes.fromhex("908dc60a")
    digest = hashlib.sha256(salt + b"test12").digest()
    assert hash_password("test12", salt) == base64.b64encode(salt + digest).decode()
    # The worked example of RabbitMQ's documentation on passwords.
    assert hash_password("test12", salt) == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


@given(PASSWORD, st.binary(min_size=4, max_size=4), st.sampled_from(["sha256", "sha512", "md5"]))
def test_the_right_password_is_let_in_and_any_other_is_not(password: str, salt: bytes, digest: str) -> None:
    algorithm = f"rabbit_password_hashing_{digest}"
    known = user(hash_password(password, salt, algorithm), algorithm)
    assert check_password(known, password)
    assert not check_password(known, password + "x")
    assert not check_password(known, password[:-1])


@pytest.mark.parametrize("stored", ["", "****", "äöü", "abc", "aGFsZg=="])
def test_a_hash_that_is_none_lets_nobody_in(stored: str) -> None:
    assert not check_password(user(stored), "guest")
    assert not check_password(user(stored), "")


def test_an_empty_password_and_an_unknown_algorithm_let_nobody_in() -> None:
    assert not check_password(user(hash_password("", b"salt")), "")
    assert not check_password(user(hash_password("x", b"salt"), "rabbit_password_hashing_rot13"), "x")


def test_permissions_are_those_of_the_user_in_the_vhost() -> None:
    definitions = Definitions()
    held = Permission(user="u", vhost="v", configure="", write="^a", read=".*")
    definitions.apply(Put(held))
    assert permission_of(definitions, "u", "v") == held
    assert permission_of(definitions, "u", "w") is None
    assert permission_of(definitions, "x", "v") is None


def test_each_operation_has_its_own_pattern_and_the_default_exchange_its_own_name() -> None:
    held = Permission(user="u", vhost="v", configure="", write="^(amq\\.default|a.*)$", read="b")
    assert not is_allowed(held, "configure", "anything")
    assert is_allowed(held, "write", "")
    assert is_allowed(held, "write", "abc")
    assert not is_allowed(held, "write", "ba")
    assert is_allowed(held, "read", "abc")
    assert not is_allowed(held, "read", "")
    assert not is_allowed(None, "read", "b")


def test_an_empty_pattern_covers_only_the_empty_name() -> None:
    assert matches("", "")
    assert not matches("", "a")
    assert matches(".*", "a")


def test_a_topic_pattern_may_name_the_user_and_the_vhost_as_they_are_written() -> None:
    pattern = topic_pattern(r"^{username}\.{vhost}$", "a.b", "v")
    assert matches(pattern, "a.b.v")
    assert not matches(pattern, "aXb.v")


@pytest.mark.parametrize("field", ["configure", "write", "read"])
def test_permissions_that_nothing_could_be_matched_with_are_refused(field: str) -> None:
    patterns = {"configure": "", "write": ".*", "read": "^a"}
    check_patterns(Permission(user="u", vhost="v", **patterns))
    with pytest.raises(InvalidCommand, match=field):
        check_patterns(Permission(user="u", vhost="v", **patterns | {field: "("}))
