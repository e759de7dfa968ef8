from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.broker.access import check_password
from leveret.model.definitions import KINDS, Binding, Exchange, Parameter, Queue, User, Vhost
from leveret.model.definitions import Definitions as Held
from leveret.model.errors import InvalidCommand
from leveret.runtime.definitions.importing import entities_of, is_passed_over, without_loose_bindings

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "vhost", "tags", "password", "arguments", "metadata", "definition"]),
            inner,
        )
    ),
    max_leaves=12,
)


def test_entities_come_in_an_order_in_which_no_reference_is_missing() -> None:
    document = {
        "queues": [{"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
        "vhosts": [{"name": "/"}],
        "users": [{"name": "app", "password": "s3cret", "tags": "management,monitoring"}],
    }
    user, vhost, queue = entities_of(document, None)
    assert isinstance(user, User)
    assert isinstance(vhost, Vhost)
    assert isinstance(queue, Queue)
    assert user.tags == ("management", "monitoring")
    assert check_password(user, "s3cret")


@pytest.mark.parametrize(
    "given_as",
    [
        {"description": "a shop", "tags": ["x"], "default_queue_type": "quorum"},
        {"metadata": {"description": "a shop", "tags": ["x"], "default_queue_type": "quorum"}},
    ],
)
def test_a_vhosts_metadata_is_read_in_the_forms_of_all_versions(given_as: dict[str, Any]) -> None:
    [vhost] = entities_of({"vhosts": [{"name": "shop", **given_as}]}, None)
    assert isinstance(vhost, Vhost)
    assert (vhost.description, vhost.tags, vhost.default_queue_type) == ("a shop", ("x",), "quorum")


def test_of_a_document_for_one_vhost_nothing_else_is_taken() -> None:
    document = {"users": [{"name": "a", "tags": ""}], "queues": [{"name": "q", "vhost": "elsewhere"}]}
    [queue] = entities_of(document, "here")
    assert queue.key == ("here", "q")


@pytest.mark.parametrize("vhost", [None, "v"])
def test_arguments_may_be_an_empty_list_as_php_writes_them(vhost: str | None) -> None:
    document = {
        "exchanges": [{"name": "e", "vhost": "v", "type": "fanout", "arguments": []}],
        "queues": [{"name": "q", "vhost": "v", "arguments": []}],
        "bindings": [{"source": "e", "vhost": "v", "destination": "q", "arguments": []}],
    }
    assert entities_of(document, vhost) == [
        Exchange(name="e", vhost="v", type="fanout"),
        Queue(name="q", vhost="v"),
        Binding(source="e", vhost="v", destination="q"),
    ]
    with pytest.raises(InvalidCommand, match=r"queues\[0\].*arguments"):
        entities_of({"queues": [{"name": "q", "vhost": "v", "arguments": [1]}]}, vhost)


def test_what_exists_and_what_is_predeclared_is_passed_over() -> None:
    existing = Held()
    existing.by_kind["queues"][("/", "q")] = Queue(name="q", vhost="/")
    assert is_passed_over(Queue(name="q", vhost="/", durable=False), existing)
    assert is_passed_over(Exchange(name="amq.own", vhost="/", type="topic"), existing)
    assert not is_passed_over(Queue(name="other", vhost="/"), existing)
    assert not is_passed_over(Queue(name="amq.gen-own", vhost="/"), existing)


@given(st.dictionaries(st.sampled_from(sorted(KINDS)), JSON))
def test_any_document_is_entities_or_an_error_that_names_the_entry(document: dict[str, Any]) -> None:
    problem = ""
    try:
        entities_of(document, None)
    except InvalidCommand as error:
        problem = str(error)
    assert not problem or problem.startswith(tuple(KINDS))


def test_bindings_of_what_is_not_in_the_file_are_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    # `rabbitmqctl export_definitions` of 3.10.8, while a client had an exclusive queue.
    bindings = [
        {"source": "amq.fanout", "vhost": "/", "destination": "amq.gen-1", "routing_key": "amq.gen-1"},
        {"source": "amq.fanout", "vhost": "/", "destination": "q", "routing_key": ""},
        {"source": "t", "vhost": "/", "destination": "held", "destination_type": "exchange"},
        {"source": "gone", "vhost": "/", "destination": "q"},
    ]
    exchanges = [{"name": "t", "vhost": "/", "type": "topic"}]
    document = {"exchanges": exchanges, "bindings": bindings, "queues": [{"name": "q", "vhost": "/"}]}
    existing = Held()
    existing.by_kind["exchanges"][("/", "held")] = Exchange(name="held", vhost="/", type="topic")
    kept = list(without_loose_bindings(entities_of(document, None), existing))
    assert [one.destination for one in kept if isinstance(one, Binding)] == ["q", "held"]
    assert "count=2 reason=no_queue_or_exchange first=/ amq.fanout queue amq.gen-1" in caplog.text


def test_an_operator_policys_settings_may_be_pairs_as_rabbitmqctl_writes_them() -> None:
    value = {"pattern": ".*", "definition": [["max-length", 10]], "priority": 0, "apply-to": "queues"}
    given = {"component": "operator_policy", "name": "op", "vhost": "/", "value": value}
    [parameter] = entities_of({"parameters": [given]}, None)
    assert isinstance(parameter, Parameter)
    assert parameter.value["definition"] == {"max-length": 10}
