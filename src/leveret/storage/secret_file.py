"""The secret that the nodes of a replication share: made by the first leader, copied by the operator.

`.replication_secret` in the data directory, 44 characters of base64, mode 0400. It is never overwritten, because
followers have copies of it. No error and no `repr` contains it.
"""

from __future__ import annotations

import base64
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from leveret.model.errors import StorageError
from leveret.storage.directory import sync_directory

SECRET_FILE: Final = ".replication_secret"
SECRET_BYTES_MIN: Final = 32
_BYTES_MAX: Final = 4096
_RANDOM_BYTES: Final = 32
_MODE: Final = 0o400


class Secret:
    """At least 32 octets that `repr` and `str` do not show."""

    __slots__ = ("octets",)

    def __init__(self, octets: bytes) -> None:
        self.octets = octets

    def __repr__(self) -> str:
        return "Secret(...)"


class SecretError(StorageError):
    """The secret is missing, or other users could have read or changed it; the text gives the remedy."""


def make_or_read(data_dir: Path) -> Secret:
    """A leader's secret: the existing one, or else a new one, on disk when this returns. Blocks for the disk.

    Raises:
        SecretError: the existing one cannot be used, or none can be written.
    """
    path = data_dir / SECRET_FILE
    try:
        os.lstat(path)
    except FileNotFoundError:
        _make(path)
    except OSError as error:
        raise SecretError(f"{path}: cannot be read: {error.strerror}") from error
    return read(data_dir)


def read(data_dir: Path) -> Secret:
    """A follower's secret, which the operator has copied there.

    White space at its end is ignored: an editor or a shell may have added a line end.

    Raises:
        SecretError: the secret is missing, too short, another user's, or not of mode 0400.
    """
    path = data_dir / SECRET_FILE
    try:
        # Without waiting, in case the file is a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise SecretError(
            f"{path} is missing: copy {SECRET_FILE} from the leader's data directory to this place, then chmod 400 it"
        ) from None
    except PermissionError as error:
        raise SecretError(
            f"{path} cannot be read: {error.strerror}; make it this node's user's with chown {os.geteuid()}, "
            "then chmod 400 it"
        ) from error
    except OSError as error:
        raise SecretError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        _check(path, os.fstat(descriptor))
        octets = os.read(descriptor, _BYTES_MAX + 1).rstrip()
    except OSError as error:
        raise SecretError(f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(octets) < SECRET_BYTES_MIN:
        raise SecretError(
            f"{path} has {len(octets)} characters, and {SECRET_BYTES_MIN} are the least: copy {SECRET_FILE} from the "
            "leader's data directory once more, whole, then chmod 400 it"
        )
    if len(octets) > _BYTES_MAX:
        raise SecretError(
            f"{path} is longer than {_BYTES_MAX} octets, so it is no secret: copy {SECRET_FILE} from the leader's "
            "data directory, then chmod 400 it"
        )
    return Secret(octets)


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SecretError(
            f"{path} is not a file: copy {SECRET_FILE} from the leader's data directory in its place, then chmod 400 it"
        )
    if status.st_uid != os.geteuid():
        raise SecretError(
            f"{path} belongs to user {status.st_uid}, and this node runs as user {os.geteuid()}: "
            f"chown {os.geteuid()} {path}"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode != _MODE:
        raise SecretError(f"{path} has mode {mode:04o}, and only its owner may read it: chmod 400 {path}")


def _make(path: Path) -> None:
    """Write a file beside and link it, so that a crash leaves a whole secret or none, and an existing one stays."""
    text = base64.b64encode(os.urandom(_RANDOM_BYTES))
    beside = path.with_name(f"{path.name}.new")
    try:
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        try:
            os.fchmod(descriptor, _MODE)
            os.write(descriptor, text)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with suppress(FileExistsError):
            os.link(beside, path)
        beside.unlink()
        sync_directory(path.parent)
    except OSError as error:
        raise SecretError(f"{path}: cannot be written: {error.strerror}") from error
