from __future__ import annotations

from pamqp import body, commands, frame, header

from bench.traffic import NAME_CHARS, SEQUENCE_BITS, Load, Ring

MIXED = Load(queues=3, body_bytes=(20, 300))


def unmarshalled(octets: bytes) -> list[tuple[str, commands.Basic.Properties, bytes]]:
    """Return the routing key, the properties and the body of each message."""
    messages, key, properties = [], "", commands.Basic.Properties()
    while octets:
        size, _, found = frame.unmarshal(octets)
        octets = octets[size:]
        if isinstance(found, commands.Basic.Publish):
            key = found.routing_key
        elif isinstance(found, header.ContentHeader):
            properties, left, content = found.properties, found.body_size, b""
        else:
            assert isinstance(found, body.ContentBody)
            content += found.value
            left -= len(found.value)
            if not left:
                messages.append((key, properties, content))
    return messages


def test_publisher_and_consumer_make_the_same_ring() -> None:
    assert Ring(MIXED, 1).octets == Ring(MIXED, 1).octets
    assert Ring(MIXED, 1).octets != Ring(MIXED, 2).octets


def test_each_message_has_its_number_as_message_id_and_at_the_front_of_its_body() -> None:
    ring = Ring(MIXED, 2)
    first = 5 * ring.count + 7
    ring.number(first, 10)
    for place, (_, properties, content) in enumerate(unmarshalled(bytes(ring.run(first, 10)))):
        number = (2 << SEQUENCE_BITS) + first + place
        assert int.from_bytes(content[:8], "big") == number
        assert properties.message_id == f"{number:0{NAME_CHARS}x}"


def test_messages_differ_in_properties_sizes_and_keys() -> None:
    ring = Ring(MIXED, 0)
    messages = unmarshalled(bytes(ring.run(0, ring.count)))
    assert len({key.split(".")[1] for key, _, _ in messages}) == 3
    assert len({len(content) for _, _, content in messages}) > 100
    assert min(len(content) for _, _, content in messages) >= 20
    assert max(len(content) for _, _, content in messages) <= 300
    assert len({properties.correlation_id for _, properties, _ in messages}) == ring.count
    assert len({str(properties.headers) for _, properties, _ in messages}) == ring.count
    assert all(len(properties.headers or {}) == 3 for _, properties, _ in messages)
    given = [[name for name, value in dict(properties).items() if value] for _, properties, _ in messages]
    assert {len(names) for names in given} == {8}


def test_an_alike_load_has_one_size_and_a_delivery_mode() -> None:
    ring = Ring(Load(mixed=False, body_bytes=(500, 500)), 0)
    ring.number(0, ring.count)
    messages = unmarshalled(bytes(ring.run(0, ring.count)))
    assert {len(content) for _, _, content in messages} == {500}
    assert {tuple(name for name, value in dict(one).items() if value) for _, one, _ in messages} == {
        ("delivery_mode",)
    }


def test_a_large_message_has_several_body_frames() -> None:
    ring = Ring(Load(body_bytes=(1_000_000, 1_000_000)), 0)
    assert ring.count == 32
    (message,) = unmarshalled(bytes(ring.run(3, 1)))
    assert len(message[2]) == 1_000_000
