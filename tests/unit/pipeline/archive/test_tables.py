"""What the disk altered in the archive is told, and never read as if it were what was written."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import StorageError
from leveret.pipeline.archive.decode import RECORDS
from leveret.pipeline.archive.recovery_plan import PlanDirectory
from leveret.pipeline.archive.tables import messages_in, read_table, write_table
from leveret.pipeline.files.files import opened
from leveret.pipeline.recovery.publish import PlanPublisher
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message

TABLE = pa.table({"queue": ["a", "b", "b"] * 50, "first": range(150), "count": [7] * 150})
BODIES = [random.Random(number).randbytes(700) for number in range(40)]


@pytest.fixture(scope="module")
def place(new_path: Callable[[], Path]) -> Path:
    return new_path() / "table"


@pytest.mark.parametrize("compressed", [True, False])
def test_a_table_is_read_as_it_was_written(place: Path, compressed: bool) -> None:
    size = write_table(place, TABLE, compressed=compressed)
    assert size == place.stat().st_size
    assert read_table(place).equals(TABLE)


@given(at=st.integers(0, 1 << 20), bit=st.integers(0, 7), compressed=st.booleans())
def test_one_bit_of_a_table_is_noticed(place: Path, at: int, bit: int, compressed: bool) -> None:
    write_table(place, TABLE, compressed=compressed)
    octets = bytearray(place.read_bytes())
    octets[at % len(octets)] ^= 1 << bit
    place.write_bytes(octets)
    with pytest.raises((OSError, pa.ArrowInvalid)):
        read_table(place)


@given(end=st.integers(0, 1 << 20))
def test_a_table_that_is_cut_off_is_noticed(place: Path, end: int) -> None:
    size = write_table(place, TABLE)
    place.write_bytes(place.read_bytes()[: end % size])
    with pytest.raises((OSError, pa.ArrowInvalid)):
        read_table(place)


def test_a_table_of_the_first_archives_is_read(place: Path) -> None:
    with pa.OSFile(str(place), "wb") as sink, pa.ipc.new_file(sink, TABLE.schema) as out:
        out.write_table(TABLE)
    assert read_table(place).equals(TABLE)


@pytest.fixture(scope="module")
def archive(new_path: Callable[[], Path]) -> tuple[PlanDirectory, Path, bytes]:
    """A plan that is to be published, the file with its messages, and what that holds."""
    data_dir = new_path()
    upstream = StandbyUpstream()
    upstream.publish("/", "q", [stored_message(body, b"", b"q") for body in BODIES])
    manifest = transfer(upstream, data_dir)
    [file] = manifest.files()
    path = data_dir / file.path
    plan = freeze_plan(manifest, "/")
    assert plan is not None
    return plan, path, path.read_bytes()


@given(at=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_a_message_is_as_it_was_or_the_file_is_told_to_be_damaged(
    archive: tuple[PlanDirectory, Path, bytes], at: int, bit: int
) -> None:
    _, path, whole = archive
    octets = bytearray(whole)
    octets[at % len(octets)] ^= 1 << bit
    path.write_bytes(octets)
    try:
        with opened(path) as source, messages_in(source, dictionaries=["queue"]) as file:
            read = file.read(RECORDS.names)
    except (OSError, pa.ArrowInvalid):
        return
    finally:
        path.write_bytes(whole)
    with opened(path) as source, messages_in(source, dictionaries=["queue"]) as file:
        assert read.equals(file.read(RECORDS.names))


def test_no_message_is_published_out_of_a_damaged_page(archive: tuple[PlanDirectory, Path, bytes]) -> None:
    directory, path, whole = archive
    octets = bytearray(whole)
    octets[whole.index(BODIES[20][300:400])] ^= 1
    path.write_bytes(octets)
    published: list[object] = []

    class Client:
        """Takes everything."""

        last_sequence = 0

        def declare_publisher(self, reference: str, stream: str) -> Client:
            return self

        def publish(self, run: object) -> None:
            published.append(run)

        def wait_confirmed(self, up_to: int, timeout_s: float) -> None:
            return

        def close(self) -> None:
            return

    try:
        with pytest.raises(StorageError, match=r"its checksum differs.*restore the file from a copy"):
            PlanPublisher(directory, Client, lambda count: None).publish(["q"])
    finally:
        path.write_bytes(whole)
    assert published == []
