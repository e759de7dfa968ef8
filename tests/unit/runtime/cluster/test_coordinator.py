from __future__ import annotations

import pytest

from leveret.core.broker.broker import Broker
from leveret.model import definitions as d
from leveret.model.errors import Refusal
from leveret.runtime.cluster.coordinator import take
from tests.unit.core.broker.test_broker import no_read


@pytest.fixture
def broker() -> Broker:
    """Of a node of a cluster; a client of its own has just declared something."""
    made = Broker(no_read)
    made.apply(d.Put(d.Vhost(name="/")))
    made.shared = []
    made.apply(d.Put(d.Queue(name="own", vhost="/", epoch=1)))
    return made


def test_what_others_decided_is_not_shared_again_and_what_waits_to_be_shared_is_not_forgotten(
    broker: Broker,
) -> None:
    waiting = list(broker.shared or ())
    take(broker, d.Put(d.Queue(name="others", vhost="/", epoch=2)))
    take(broker, d.Put(d.Queue(name="others", vhost="/", epoch=3)))
    assert set(broker.queues) == {("/", "own"), ("/", "others")}
    assert waiting
    assert broker.shared == waiting


def test_nor_is_it_when_others_decided_what_cannot_be_taken(broker: Broker) -> None:
    waiting = list(broker.shared or ())
    with pytest.raises(Refusal):
        take(broker, d.Put(d.Queue(name="astray", vhost="nowhere", epoch=2)))
    assert broker.shared == waiting


def test_a_queue_that_others_restarted_keeps_its_bindings_and_one_declared_otherwise_does_not(
    broker: Broker,
) -> None:
    def bound() -> list[str]:
        return [each.destination for each in broker.topology("/").bindings()]

    def is_there() -> bool:
        return ("/", "source") in broker.definitions.by_kind["exchanges"]

    take(broker, d.Put(d.Exchange(name="source", vhost="/", type="fanout", auto_delete=True)))
    take(broker, d.Put(d.Queue(name="others", vhost="/", epoch=2)))
    take(broker, d.Put(d.Binding(source="source", vhost="/", destination="others")))
    take(broker, d.Put(d.Queue(name="others", vhost="/", epoch=3)))
    assert broker.queue("/", "others").epoch == 3
    assert bound() == ["others"]
    assert is_there()
    take(broker, d.Put(d.Queue(name="others", vhost="/", epoch=4, arguments={"x-max-length": 1})))
    assert broker.queue("/", "others").epoch == 4
    assert bound() == []
    assert not is_there()
