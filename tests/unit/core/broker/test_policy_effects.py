"""core.broker.policy_effects, through the broker: what follows at once when a policy comes, changes or goes."""

from __future__ import annotations

from typing import Any

from leveret.core.broker.broker import Broker
from leveret.model import definitions as d


def broker(*entities: d.AnyEntity) -> Broker:
    made = Broker(lambda queue, offset: [])
    for entity in (d.Vhost(name="v"), *entities):
        made.apply(d.Put(entity))
    return made


def queue(name: str = "q", **more: Any) -> d.Queue:
    return d.Queue(name=name, vhost="v", **more)


def exchange(name: str) -> d.Exchange:
    return d.Exchange(name=name, vhost="v", type="fanout")


def policy(**more: Any) -> d.Policy:
    return d.Policy(**{"vhost": "v", "name": "p", "pattern": "^q"} | more)


def operator_policy(**more: Any) -> d.Parameter:
    value = {"pattern": "^q", "priority": 0, "definition": {"max-length": 3}} | more
    return d.Parameter(vhost="v", component="operator_policy", name="o", value=value)


def test_a_policy_and_an_operator_policy_hold_at_once_for_the_queues_that_are_there() -> None:
    one = broker(queue(arguments={"x-max-length": 9}), queue("other"))
    held = one.queue("v", "q")
    assert one.policies_of_queue(held) == (None, None, {})
    one.apply(d.Put(policy(definition={"max-length": 5, "message-ttl": 7})))
    assert (held.settings.max_length, held.settings.message_ttl_ms) == (5, 7)
    one.apply(d.Put(operator_policy()))
    assert held.settings.max_length == 3
    assert one.policies_of_queue(held) == ("p", "o", {"max-length": 3, "message-ttl": 7})
    assert one.policies_of_queue(one.queue("v", "other")) == (None, None, {})
    one.apply(d.Delete("parameters", ("v", "operator_policy", "o")))
    one.apply(d.Delete("policies", ("v", "p")))
    assert (held.settings.max_length, held.settings.message_ttl_ms) == (9, None)
    assert one.policies_of_queue(held) == (None, None, {})


def test_a_queue_has_its_policies_from_its_declaration_on() -> None:
    one = broker(policy(definition={"max-length": 5}), operator_policy())
    held = one.declare_queue(queue())
    assert (held.policy, held.settings.max_length) == ("p", 3)
    one.delete_queue(held)
    assert one.topology("v").queue_policies == {}


def test_what_applies_to_an_exchange_is_told() -> None:
    one = broker(exchange("q-e"), policy(definition={"alternate-exchange": "x"}), operator_policy())
    merged = {"alternate-exchange": "x", "max-length": 3}
    exchanges = one.topology("v").exchanges
    assert exchanges["q-e"].applied == ("p", "o", merged)
    assert exchanges["amq.topic"].applied == (None, None, {})


def test_only_queues_whose_policies_changed_are_configured_again() -> None:
    one = broker(queue(), queue("other"), policy(definition={"max-length": 5}))
    configured: list[str] = []
    for held in one.vhost_queues("v"):
        name = held.definition.name
        held.configure = lambda settings, name=name: configured.append(name)  # type: ignore[method-assign, misc]
    one.apply(d.Put(policy(name="p2", pattern="^other$", definition={"max-length": 6})))
    assert configured == ["other"]
    one.apply(d.Put(policy(definition={"max-length": 7})))
    assert configured == ["other", "q"]
