"""wire.record: stored messages and settlements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.reasons import Reason
from leveret.session.stream.writing import REFERENCE_BYTES_MAX
from leveret.wire.chunk import ChunkError
from leveret.wire.record import (
    Settlement,
    StoredMessage,
    body_start,
    content_header,
    decode_message,
    decode_settlements,
    downstream_reference,
    encode_settlements,
    is_taking_over,
    message_head,
    named_downstream,
    taking_over,
)

SHORT = st.binary(max_size=255)


@given(exchange=SHORT, routing_key=SHORT, header=st.binary(max_size=300), body=st.binary(max_size=300))
def test_a_message_reads_back_as_it_was_stored(
    exchange: bytes, routing_key: bytes, header: bytes, body: bytes
) -> None:
    head = message_head(exchange, routing_key, header)
    assert body_start(head + body) == len(head)
    assert decode_message(head + body) == StoredMessage(exchange, routing_key, header, body)


def test_a_stored_message_is_exchange_key_header_and_body_in_that_order() -> None:
    header = content_header(b"\x10\x00\x02", 4)
    assert header == bytes.fromhex("003c 0000 0000000000000004 1000 02")
    entry = message_head(b"ex", b"key", header) + b"body"
    assert entry == b"\x02ex" + b"\x03key" + b"\0\0\0\x0f" + header + b"body"
    assert decode_message(entry).properties == b"\x10\x00\x02"


def test_a_message_cut_before_its_body_is_refused() -> None:
    head = message_head(b"exchange", b"routing.key", content_header(b"\0\0", 0))
    for size in range(len(head)):
        with pytest.raises(ChunkError, match="stored message"):
            decode_message(head[:size])
    assert decode_message(head).body == b""


@given(
    st.lists(
        st.tuples(st.sampled_from(Reason), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), max_size=9
    )
)
def test_settlements_read_back_as_they_were_logged(ranges: list[tuple[Reason, int, int]]) -> None:
    settlements = [Settlement(*one) for one in ranges]
    body = encode_settlements(settlements)
    assert len(body) == 13 * len(settlements)
    assert list(decode_settlements(body)) == settlements
    assert list(decode_settlements(memoryview(body))) == settlements


@pytest.mark.parametrize("size", [1, 12, 14, 25])
def test_a_settlement_record_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ChunkError, match=f"of {size} octets"):
        decode_settlements(bytes(size))


@given(st.text(max_size=400), st.text("0123456789abcdef", min_size=1, max_size=12))
def test_a_downstreams_reference_has_its_name_and_id_and_fits_the_stream_protocol(
    name: str, own_id: str
) -> None:
    reference = downstream_reference(name, own_id)
    assert len(reference.encode()) <= REFERENCE_BYTES_MAX
    shown, told = named_downstream(reference)
    assert (told, name.startswith(shown)) == (own_id, True)
    assert shown == name or len(name.encode()) > 200


@given(st.text(max_size=400), st.text("0123456789abcdef", min_size=1, max_size=12))
def test_a_reference_tells_of_a_take_over_beside_the_same_id(name: str, own_id: str) -> None:
    reference = downstream_reference(name, own_id)
    marked = taking_over(reference)
    assert len(marked.encode()) <= REFERENCE_BYTES_MAX
    assert named_downstream(marked)[1] == own_id
    assert is_taking_over(marked)
    assert not is_taking_over(reference)


def test_a_reference_of_an_earlier_version_is_a_name_without_an_id() -> None:
    assert named_downstream("eu.2") == ("eu.2", "")
