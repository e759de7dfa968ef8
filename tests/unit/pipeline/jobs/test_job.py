"""What a job says of itself, and which vhosts it is about."""

from __future__ import annotations

import pytest

from leveret.pipeline.jobs.job import AmqpTarget, LoginCredentials, RecoverJob

CREDENTIALS = LoginCredentials(username="u", password="hush")


def job(**fields: object) -> RecoverJob:
    return RecoverJob(data_dir="d", endpoint="h:1", credentials=CREDENTIALS, **fields)  # type: ignore[arg-type]


def test_no_representation_shows_a_password() -> None:
    target = AmqpTarget(host="h", port=1, credentials=CREDENTIALS)
    for shown in (repr(CREDENTIALS), repr(target), repr(job(to=target))):
        assert "username='u'" in shown
        assert "hush" not in shown


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, ["a", "b"]),
        ({"exclude": ["a"]}, ["b"]),
        ({"vhosts": {"a": "scratch"}}, ["a"]),
        ({"vhosts": {"a": "scratch"}, "exclude": ["a"]}, []),
        ({"followed": ["b", "c"]}, ["b"]),
        ({"followed": ["a", "b"], "exclude": ["b"]}, ["a"]),
    ],
)
def test_a_vhost_is_recovered_if_it_is_asked_for_and_not_left_out(
    fields: dict[str, object], wanted: list[str]
) -> None:
    assert [vhost for vhost in ("a", "b") if job(**fields).wants(vhost)] == wanted


def test_a_vhost_is_unfollowed_if_nothing_else_keeps_it_out() -> None:
    followed = job(followed=["a"], exclude=["b"], vhosts={"a": "a", "b": "b", "c": "c"})
    assert [vhost for vhost in ("a", "b", "c", "of another node") if followed.is_unfollowed(vhost)] == ["c"]
    assert not job().is_unfollowed("a")
