"""The secret of a replication: made once, never overwritten, and refused where others could have it."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest

from leveret.model.errors import StorageError
from leveret.storage.secret_file import SECRET_FILE, SecretError, make_or_read, read

TEXT = b"c2VjcmV0IG9mIHNpeHR5LWZvdXIgY2hhcmFjdGVycyE="


def put(data_dir: Path, octets: bytes = TEXT, mode: int = 0o400) -> Path:
    path = data_dir / SECRET_FILE
    path.write_bytes(octets)
    path.chmod(mode)
    return path


def test_a_leader_makes_one_that_only_its_owner_may_read(tmp_path: Path) -> None:
    secret = make_or_read(tmp_path)
    path = tmp_path / SECRET_FILE
    assert [each.name for each in tmp_path.iterdir()] == [SECRET_FILE]
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert len(secret.octets) == 44
    assert len(base64.b64decode(secret.octets, validate=True)) == 32
    assert path.read_bytes() == secret.octets == read(tmp_path).octets


def test_no_two_leaders_make_the_same(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert make_or_read(tmp_path / "a").octets != make_or_read(tmp_path / "b").octets


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        make_or_read(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / SECRET_FILE).stat().st_mode) == 0o400


def test_one_that_is_there_stays(tmp_path: Path) -> None:
    put(tmp_path)
    assert make_or_read(tmp_path).octets == TEXT


def test_one_that_cannot_be_used_stays_too(tmp_path: Path) -> None:
    path = put(tmp_path, b"")
    with pytest.raises(SecretError, match="has 0 characters"):
        make_or_read(tmp_path)
    assert path.read_bytes() == b""


def test_one_that_is_copied_while_another_is_made_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def copied_meanwhile(descriptor: int) -> None:
        sync(descriptor)
        if not (tmp_path / SECRET_FILE).exists():
            put(tmp_path)

    monkeypatch.setattr(os, "fsync", copied_meanwhile)
    assert make_or_read(tmp_path).octets == TEXT
    assert [each.name for each in tmp_path.iterdir()] == [SECRET_FILE]


def test_what_a_crash_left_beside_it_does_no_harm(tmp_path: Path) -> None:
    beside = tmp_path / f"{SECRET_FILE}.new"
    beside.write_bytes(b"half")
    beside.chmod(0o400)
    assert len(make_or_read(tmp_path).octets) == 44
    assert not beside.exists()


def test_file_and_directory_are_on_disk_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append("directory" if is_directory else "file")
        assert (tmp_path / SECRET_FILE).exists() is is_directory
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    make_or_read(tmp_path)
    assert synced == ["file", "directory"]


def test_white_space_at_the_end_does_not_count(tmp_path: Path) -> None:
    put(tmp_path, TEXT + b"\r\n")
    assert read(tmp_path).octets == TEXT


def test_a_follower_without_one_is_told_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(SecretError) as missing:
        read(tmp_path)
    assert str(missing.value) == (
        f"{tmp_path / SECRET_FILE} is missing: copy .replication_secret from the leader's data directory to this "
        "place, then chmod 400 it"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o440, 0o404, 0o401, 0o500, 0o4400, 0o666])
def test_any_other_mode_is_refused(tmp_path: Path, mode: int) -> None:
    path = put(tmp_path, mode=mode)
    for get in (read, make_or_read):
        with pytest.raises(SecretError, match=rf"has mode {mode:04o}, .*: chmod 400 {path}$"):
            get(tmp_path)


def test_another_user_s_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(
        SecretError, match=r"belongs to user \d+, and this node runs as user 4711: chown 4711 "
    ):
        read(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_one_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    put(tmp_path, mode=0)
    with pytest.raises(SecretError, match=r"cannot be read: Permission denied; .*chmod 400"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("octets", "fault"),
    [
        (b"", "has 0 characters, and 32 are the least"),
        (TEXT[:31], "has 31 characters"),
        (TEXT[:31] + b"\n" * 20, "has 31 characters"),
        (b"x" * 5000, "longer than 4096 octets"),
    ],
)
def test_one_of_the_wrong_length_is_refused(tmp_path: Path, octets: bytes, fault: str) -> None:
    put(tmp_path, octets)
    with pytest.raises(SecretError, match=rf"{fault}.*copy \.replication_secret from the leader"):
        read(tmp_path)


def test_32_octets_are_enough(tmp_path: Path) -> None:
    put(tmp_path, TEXT[:32])
    assert read(tmp_path).octets == TEXT[:32]


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    (tmp_path / SECRET_FILE).mkdir()
    with pytest.raises(SecretError, match="is not a file"):
        read(tmp_path)
    (tmp_path / SECRET_FILE).rmdir()
    os.mkfifo(tmp_path / SECRET_FILE, 0o400)
    with pytest.raises(SecretError, match="is not a file"):
        make_or_read(tmp_path)


def test_a_link_to_nowhere_is_missing_and_stays(tmp_path: Path) -> None:
    (tmp_path / SECRET_FILE).symlink_to("elsewhere")
    with pytest.raises(SecretError, match="is missing"):
        make_or_read(tmp_path)
    assert (tmp_path / SECRET_FILE).is_symlink()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match=r"none/\.replication_secret: cannot be written: No such file"):
        make_or_read(tmp_path / "none")


def test_it_is_in_no_text(tmp_path: Path) -> None:
    put(tmp_path)
    secret = read(tmp_path)
    assert TEXT.decode() not in f"{secret!r} {secret} {[secret]}"
    (tmp_path / SECRET_FILE).chmod(0o640)
    with pytest.raises(StorageError) as refused:
        read(tmp_path)
    assert TEXT.decode() not in str(refused.value)
