"""core.broker.policy_effects, through the broker: what follows when a policy comes, changes or goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leveret.core.broker.broker import Broker
from leveret.model import definitions as d


def broker(*entities: d.AnyEntity) -> Broker:
    made = Broker(lambda queue, offset: [])
    for entity in (d.Vhost(name="v"), *entities):
        made.apply(d.Put(entity))
    return made


def change(one: Broker, *changes: d.Change) -> None:
    for each in changes:
        one.apply(each)
    assert not one.refresh_policies()


def queue(name: str = "q", **more: Any) -> d.Queue:
    return d.Queue(name=name, vhost="v", **more)


def exchange(name: str) -> d.Exchange:
    return d.Exchange(name=name, vhost="v", type="fanout")


def policy(**more: Any) -> d.Policy:
    return d.Policy(**{"vhost": "v", "name": "p", "pattern": "^q"} | more)


def operator_policy(**more: Any) -> d.Parameter:
    value = {"pattern": "^q", "priority": 0, "definition": {"max-length": 3}} | more
    return d.Parameter(vhost="v", component="operator_policy", name="o", value=value)


def test_a_policy_and_an_operator_policy_hold_for_the_queues_that_are_there() -> None:
    one = broker(queue(arguments={"x-max-length": 9}), queue("other"))
    held = one.queue("v", "q")
    assert one.policies_of_queue(held) == (None, None, {})
    change(one, d.Put(policy(definition={"max-length": 5, "message-ttl": 7})))
    assert (held.settings.max_length, held.settings.message_ttl_ms) == (5, 7)
    change(one, d.Put(operator_policy()))
    assert held.settings.max_length == 3
    assert one.policies_of_queue(held) == ("p", "o", {"max-length": 3, "message-ttl": 7})
    assert one.policies_of_queue(one.queue("v", "other")) == (None, None, {})
    change(one, d.Delete("parameters", ("v", "operator_policy", "o")))
    change(one, d.Delete("policies", ("v", "p")))
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
    one.refresh_policies()
    merged = {"alternate-exchange": "x", "max-length": 3}
    exchanges = one.topology("v").exchanges
    assert exchanges["q-e"].applied == ("p", "o", merged)
    assert exchanges["amq.topic"].applied == (None, None, {})


def test_only_queues_whose_policies_changed_are_configured_again() -> None:
    one = broker(queue(), queue("other"), policy(definition={"max-length": 5}))
    one.refresh_policies()
    configured: list[str] = []
    for held in one.vhost_queues("v"):
        name = held.definition.name
        held.configure = lambda settings, name=name: configured.append(name)  # type: ignore[method-assign, misc]
    change(one, d.Put(policy(name="p2", pattern="^other$", definition={"max-length": 6})))
    assert configured == ["other"]
    change(one, d.Put(policy(definition={"max-length": 7})))
    assert configured == ["other", "q"]


def after(count: int) -> Callable[[], bool]:
    """Say that it is over when it was asked so often."""
    asked = iter(range(count, 0, -1))
    return lambda: next(asked) <= 1


def limits(one: Broker) -> list[int | None]:
    return [each.settings.max_length for each in one.vhost_queues("v")]


def test_a_policy_comes_to_as_many_queues_at_once_as_there_is_time_for() -> None:
    one = broker(*(queue(f"q{number}") for number in range(5)))
    one.dirty.clear()
    one.apply(d.Put(policy(definition={"max-length": 7})))
    assert limits(one) == [None] * 5, "a change costs the same, however many queues there are"
    assert one.refresh_policies(after(2))
    assert limits(one) == [7, 7, None, None, None]
    assert [each.definition.name for each in one.dirty] == ["q0", "q1"]
    assert one.refresh_policies(after(2))
    assert not one.refresh_policies()
    assert limits(one) == [7] * 5


def test_policies_that_change_before_all_queues_were_looked_at_are_looked_at_from_the_first_again() -> None:
    one = broker(*(queue(f"q{number}") for number in range(4)))
    one.apply(d.Put(policy(definition={"max-length": 7})))
    assert one.refresh_policies(after(3))
    one.apply(d.Delete("policies", ("v", "p")))
    one.apply(d.Put(policy(name="p2", definition={"max-length": 9})))
    assert one.refresh_policies(after(1))
    assert limits(one) == [9, 7, 7, None], "never without either: that could lift a limit, or impose one"
    assert not one.refresh_policies()
    assert limits(one) == [9] * 4


def test_what_comes_and_goes_while_a_policy_comes_to_the_queues_has_what_applies_now() -> None:
    one = broker(queue("q0"), queue("q1"), queue("q2"), exchange("q-e"))
    one.apply(d.Put(policy(definition={"max-length": 7})))
    assert one.refresh_policies(after(1))
    one.delete_queue(one.queue("v", "q1"))
    one.delete_queue(one.queue("v", "q2"))
    one.declare_queue(queue("q2"))
    one.declare_queue(queue("q3"))
    assert limits(one) == [7, 7, 7]
    assert not one.refresh_policies()
    assert limits(one) == [7, 7, 7]
    one.apply(d.Put(policy(definition={"max-length": 8})))
    one.apply(d.Delete("vhosts", ("v",)))
    assert not one.refresh_policies()


def test_publishers_look_again_once_a_queue_or_an_exchange_has_what_applies() -> None:
    one = broker(queue(), exchange("q-e"))
    one.apply(d.Put(policy(definition={"overflow": "reject-publish"})))
    before = one.version
    one.refresh_policies()
    assert one.version > before
    one.apply(d.Put(policy(definition={"overflow": "reject-publish", "alternate-exchange": "x"})))
    before = one.version
    one.refresh_policies()
    assert one.version > before
