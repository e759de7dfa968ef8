from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import Any

import pytest

from leveret.cli.api import Api, CtlError, NotFoundByApi
from leveret.cli.checks import json_of, json_text, listed, need_user, need_vhost, refused_as
from leveret.cli.command import Session


class Nothing(Api):
    """A node that has nothing."""

    def __init__(self) -> None:
        """There is nobody to ask."""

    def get(self, *parts: str, **query: str) -> Any:
        raise NotFoundByApi(65, "no such thing")


@pytest.fixture
def ctl() -> Session:
    return Session(open=lambda: nullcontext(Nothing()), stack=ExitStack(), vhost="v")


def test_what_is_missing_is_told_by_its_kind_and_name(ctl: Session) -> None:
    for ask in (need_vhost, lambda one: listed(one, "queues")):
        with pytest.raises(CtlError, match="Virtual host 'v' does not exist") as caught:
            ask(ctl)
        assert caught.value.status == 65
    with pytest.raises(CtlError, match='User "u" does not exist') as caught:
        need_user(ctl, "u")
    assert caught.value.status == 67
    with pytest.raises(CtlError) as caught:
        need_user(ctl, "u", 69)
    assert caught.value.status == 69


@pytest.mark.parametrize(("status", "expected"), [(65, 69), (77, 77), (69, 69)])
def test_only_what_the_node_declines_gets_another_status(status: int, expected: int) -> None:
    with pytest.raises(CtlError, match="because") as caught, refused_as(69):
        raise CtlError(status, "because")
    assert caught.value.status == expected


def test_json_goes_in_and_out() -> None:
    assert json_of('{"a": [1]}') == {"a": [1]}
    assert json_text({"a": [1]}) == '{"a":[1]}'
    for malformed in ("{", "\udcff", "[" * 2_000 + "]" * 2_000):
        with pytest.raises(CtlError, match="JSON decoding error") as caught:
            json_of(malformed)
        assert caught.value.status == 69
