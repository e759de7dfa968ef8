"""Bringing the suites: their sdists, an environment of their own, and certificates.

Everything is under build/suites and made once for a lock. pip's own configuration says from where.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.suites.brokers import Certificates
from tests.suites.lock import LockError, extract, read_lock

ROOT: Final = Path(__file__).resolve().parents[2]
ROOM: Final = ROOT / "build" / "suites"
LOCK: Final = ROOT / "requirements" / "suites.txt"
# They build the source packages of the lock, so they are installed before those.
BUILD_TOOLS: Final = ("cython", "poetry-core", "setuptools", "uv-build")
PIP_TIMEOUT_S: Final = 900
OUTPUT_CHARS: Final = 2000


class FetchError(Exception):
    """Something could not be brought; the text ends with what the command said."""


class Workshop:
    """The environment that runs the suites, and the folders of their sdists."""

    def __init__(self, room: Path = ROOM, lock: Path = LOCK) -> None:
        self.room = room
        self.lock_text = lock.read_text()
        self.packages = read_lock(self.lock_text)

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.room / "venv" / "bin" / "python"

    def install(self, say: Callable[[str], None]) -> None:
        """Make the environment, unless the one that is there was made from this lock.

        Raises:
            FetchError: pip or venv failed.
            LockError: the lock lacks a build tool.
        """
        stamp = self.room / "venv" / "made"
        made_from = hashlib.sha256(f"{sys.version}{self.lock_text}".encode()).hexdigest()
        if stamp.exists() and stamp.read_text() == made_from:
            return
        say("making the environment of the suites")
        self.room.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", "--clear", str(self.room / "venv")])
        self._pip("install", self._part("build-tools", BUILD_TOOLS))
        self._pip("install", self._part("all", tuple(self.packages)), "--no-build-isolation")
        stamp.write_text(made_from)

    def sdist(self, package: str, say: Callable[[str], None]) -> Path:
        """Return the folder of a package's sdist, freshly unpacked; download it the first time.

        Raises:
            FetchError: pip failed.
            LockError: the package is not in the lock.
        """
        if package not in self.packages:
            raise LockError(f"not in the lock: {package}; tools/lock writes it from pyproject.toml")
        version = self.packages[package].version
        downloads = self.room / "sdists"
        pattern = f"{package.replace('-', '[-_]')}-{version}.tar.gz"
        if not list(downloads.glob(pattern)):
            say(f"downloading {package} {version}")
            wanted = self._part(package, (package,))
            self._pip(
                "download",
                wanted,
                *("--no-deps", "--no-binary", package, "--no-build-isolation", "--dest", str(downloads)),
            )
        (archive,) = downloads.glob(pattern)
        return unpacked(archive, self.room / "src" / package)

    def certificates(self, say: Callable[[str], None]) -> Certificates:
        """Return certificates that this machine made for itself.

        Raises:
            FetchError: they could not be made.
        """
        folder = self.room / "certificates"
        made = Certificates(folder / "client.pem", folder / "server.pem", folder / "server.key")
        if not all(file.exists() for file in (made.ca, made.certificate, made.key)):
            say("making certificates")
            folder.mkdir(parents=True, exist_ok=True)
            _run([str(self.python), "-m", "trustme", "-q", "-d", str(folder), "-i", "localhost", "127.0.0.1"])
            made.key.chmod(0o600)
        return made

    def _part(self, name: str, packages: tuple[str, ...]) -> Path:
        """Write a lock of some of the packages, for pip to read."""
        target = self.room / f"{name}.txt"
        target.write_text(extract(self.packages, packages))
        return target

    def _pip(self, command: str, lock: Path, *options: str) -> None:
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
        _run([*pip, command, "--require-hashes", *options, "--requirement", str(lock)])


def unpacked(archive: Path, target: Path) -> Path:
    """Unpack an archive of sources into an empty folder; return the one folder in it."""
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(target, filter="data")
        else:  # Python 3.11 before 3.11.4; the lock has a hash for each archive
            packed.extractall(target)
    (folder,) = (each for each in target.iterdir() if each.is_dir())
    return folder


def _run(command: list[str]) -> None:
    """Run one step to its end, without a word unless it fails."""
    # What builds the sdists looks for its programs on the path, beside its interpreter.
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PIP_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-OUTPUT_CHARS:]
        raise FetchError(f"{' '.join(command[1:5])} failed with status {done.returncode}:\n{said}")
