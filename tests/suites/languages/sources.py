"""Bringing suites from npm and from Debian's sources, into build/suites; the tools' own settings say from where."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.suites.fetch import OUTPUT_CHARS, PIP_TIMEOUT_S, ROOT, FetchError, unpacked

LOCKS: Final = ROOT / "requirements" / "npm"
_APT: Final = Path("/etc/apt")
Bring = Callable[[Path], Path]
"""Brings a suite into a folder of its own; returns the folder of its tests, unpacked anew."""


def npm(name: str, tests: str | Path) -> Bring:
    """A suite with what it needs of npm, as requirements/npm/`name` locks it with its hashes.

    Args:
        name: of the lock.
        tests: the package that has the suite, or a folder of ours.
    """

    def bring(room: Path) -> Path:
        locks = [LOCKS / name / file for file in ("package.json", "package-lock.json")]
        made_from = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()
        stamp = room / "made"
        if not stamp.exists() or stamp.read_text() != made_from:
            shutil.rmtree(room, ignore_errors=True)
            room.mkdir(parents=True)
            for lock in locks:
                shutil.copy(lock, room)
            # Scripts of packages are not run: they would download programs.
            call(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], room)
            stamp.write_text(made_from)
        suite = room / "suite"
        shutil.rmtree(suite, ignore_errors=True)
        shutil.copytree(room / "node_modules" / tests, suite)
        return suite

    return bring


def debian_source(name: str, sha256: str, build: Callable[[Path], None] | None = None) -> Bring:
    """A suite in the sources of a Debian package.

    Args:
        name: of the source package.
        sha256: of the upstream's archive in it.
        build: makes what the tests need in the unpacked folder.
    """

    def bring(room: Path) -> Path:
        room.mkdir(parents=True, exist_ok=True)
        archive = _archive(room, sha256) or _downloaded(name, room, sha256)
        folder = unpacked(archive, room / "suite")
        if build is not None:
            build(folder)
        return folder

    return bring


def installed(folder: str) -> Bring:
    """A suite that a Debian package installs."""
    return lambda _room: Path(folder)


def _archive(room: Path, sha256: str) -> Path | None:
    for archive in room.glob("*.orig.tar.*"):
        if hashlib.sha256(archive.read_bytes()).hexdigest() == sha256:
            return archive
    return None


def _downloaded(name: str, room: Path, sha256: str) -> Path:
    """Download a source package by apt, whose own lists need not name sources."""
    sources = room.parent / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "parts"):
        (sources / folder).mkdir(parents=True, exist_ok=True)
    for file in (_APT / "sources.list", *(_APT / "sources.list.d").glob("*.sources")):
        if file.exists():
            # Updates for security have the same archives of the upstream, and not every mirror has their sources.
            entries = (each for each in re.split(r"\n\s*\n", file.read_text()) if "-security" not in each)
            text = re.sub(r"(?m)^Types:.*", "Types: deb-src", "\n\n".join(entries))
            name_in_parts = file.name.replace("sources.list", "main.list")
            (sources / "parts" / name_in_parts).write_text(re.sub(r"(?m)^deb(?=\s)", "deb-src", text) + "\n")
    options = [
        *("-o", "Dir::Etc::sourcelist=-", "-o", f"Dir::Etc::sourceparts={sources / 'parts'}"),
        *("-o", f"Dir::State::lists={sources / 'lists'}", "-o", f"Dir::Cache={sources / 'cache'}"),
        *("-o", "APT::Sandbox::User=", "-qq"),
    ]
    call(["apt-get", *options, "update"], room)
    try:
        call(["apt-get", *options, "source", "--download-only", "--tar-only", name], room)
    except FetchError:
        # A mirror may lack another part of the package than this one.
        if (archive := _archive(room, sha256)) is None:
            raise
        return archive
    archive = _archive(room, sha256)
    if archive is None:
        raise FetchError(f"the sources of {name} are not those with the SHA-256 {sha256}")
    return archive


def call(command: Sequence[str | Path], folder: Path) -> None:
    """Run one step to its end, without a word unless it fails.

    Raises:
        FetchError: it failed; the text has what it said.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PIP_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise FetchError(f"no program {error.filename}") from None
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-OUTPUT_CHARS:]
        raise FetchError(f"{' '.join(map(str, command[:5]))} failed with status {done.returncode}:\n{said}")
