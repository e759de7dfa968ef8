from __future__ import annotations

import inspect

import msgspec

from leveret.management.request.replies import STATUS, refusal_reply
from leveret.model import errors
from leveret.model.errors import LeveretError, NotFound, Refusal


def test_every_refusal_has_a_status_of_its_own() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Refusal)]
    assert set(kinds) <= set(STATUS)


def test_a_new_kind_of_refusal_is_still_a_bad_request() -> None:
    class Odd(Refusal):
        pass

    assert refusal_reply(Odd("why")).status_code == 400


def test_an_error_that_is_no_refusal_is_the_nodes_own() -> None:
    assert refusal_reply(LeveretError("disk full")).status_code == 503


def test_an_error_says_what_and_why() -> None:
    reply = refusal_reply(NotFound("no queue 'q' in vhost '/'"))
    assert msgspec.json.decode(reply.body) == {
        "error": "Object Not Found",
        "reason": "no queue 'q' in vhost '/'",
    }


def test_a_change_that_names_what_is_not_there_has_rabbitmqs_other_word() -> None:
    body = refusal_reply(NotFound("no queue"), to_change=True).body
    assert msgspec.json.decode(body)["error"] == "not_found"
