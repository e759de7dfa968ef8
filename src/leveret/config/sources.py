"""Reads a node's settings from files, the environment and the command line into the tree, or raises an error.

Later sources win: defaults, files, the environment (`LEVERET_` and the key in capitals with `_` for `.`), the
command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from leveret.config import lavinmq
from leveret.config.sections import cluster, etcd, followers
from leveret.config.settings import Setting, check_known, read_tree
from leveret.config.syntax import SettingText, parse_lines, render_line
from leveret.config.tree import SETTINGS, Config
from leveret.model.errors import ConfigError

ENVIRONMENT_PREFIX: Final = "LEVERET_"
OVERRIDE: Final = "--set"
LOCALS_PREFIX: Final = "schema_definition_sync.downstream.locals."
LOGS_VARIABLE: Final = "LEVERET_LOGS"


def load(path: Path | None, overrides: Mapping[str, str] | None = None) -> Config:
    """Read the file, if there is one, and put `overrides` (texts by key) on top.

    Raises:
        ConfigError: the file cannot be read, a key is unknown or a value is not allowed.
    """
    return build(gather(*((path,) if path else ()), overrides=overrides))


def gather(
    *paths: Path,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    flags: Mapping[str, SettingText] | None = None,
) -> dict[str, SettingText]:
    """Return all given texts with their places; the later source wins.

    Args:
        paths: files, and directories whose `*.conf` files are read in the order of their names.
        environ: the process's environment.
        overrides: texts by key, from the command line.
        flags: texts of keys with a command-line option of their own, each with the option's name; they win over all.

    Raises:
        ConfigError: a file cannot be read, a line is no setting, a key is unknown, or a secret is among `overrides`.
    """
    given: dict[str, SettingText] = {}
    for path in paths:
        for file in _files_at(path):
            if lavinmq.is_lavinmq(file.name):
                given |= lavinmq.parse_ini(_text_of(file), str(file))
            else:
                given |= parse_lines(_text_of(file), str(file), partial(_text_beside, file), _joins)
    given |= _from_environment(environ or {})
    given |= {key: SettingText(text, OVERRIDE) for key, text in (overrides or {}).items()}
    given |= flags or {}
    check_known(given, SETTINGS)
    _check_not_in_sight(given)
    return given


def config_files(*paths: Path) -> tuple[str, ...]:
    """Return the files that `gather` reads for these paths, as absolute paths."""
    return tuple(str(file.absolute()) for path in paths for file in _files_at(path))


def build(given: Mapping[str, SettingText], files: tuple[str, ...] = ()) -> Config:
    """Build the tree from the texts of `gather`, read in `files` and elsewhere.

    Raises:
        ConfigError: a value is not allowed, or two values contradict each other.
    """
    config = replace(read_tree(Config, given), files=files)
    etcd.check_together(config.etcd, given)
    followers.check_together(config.followers, given, is_elected=config.is_elected)
    cluster.check_together(config, given)
    return config


def render(given: Mapping[str, SettingText]) -> str:
    """Return the settings in force as a configuration file; each line names its source. Secrets are left out."""
    return "".join(f"{line:<60} # {origin}\n" for one in SETTINGS for line, origin in _lines(one, given))


def unknown_variables(environ: Mapping[str, str], known: frozenset[str]) -> list[str]:
    """Return the names of variables that look like settings and are none, except `known` ones."""
    return sorted(
        name
        for name in environ
        if name.startswith(ENVIRONMENT_PREFIX) and name not in {*known, LOGS_VARIABLE} and not _key_of(name)
    )


def _check_not_in_sight(given: Mapping[str, SettingText]) -> None:
    for key, text in given.items():
        one = next(each for each in SETTINGS if each.takes(key))
        if text.origin == OVERRIDE and one.hides(key, text.text):
            or_else = "" if one.is_family else f" or as {_variable_of(key)}"
            raise ConfigError(
                f"{OVERRIDE}: {key} is a secret, and the command line is visible to all users: "
                f"give it in the file{or_else}"
            )


def _joins(key: str) -> bool:
    """Return whether a repeated key adds to its value, as a downstream's local entities do in the guides."""
    return key.startswith(LOCALS_PREFIX)


def _files_at(path: Path) -> list[Path]:
    return sorted(path.glob("*.conf")) if path.is_dir() else [path]


def _text_beside(file: Path, name: str) -> str:
    return _text_of(file.parent / name)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 at byte {error.start}") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, SettingText]:
    pairs = ((_key_of(name), name) for name in sorted(environ))
    return _logs(environ) | {key: SettingText(environ[name], name) for key, name in pairs if key}


def _logs(environ: Mapping[str, str]) -> dict[str, SettingText]:
    """Apply `RABBITMQ_LOGS` as RabbitMQ does: a log file, or `-` for standard output without a file."""
    place = environ.get(LOGS_VARIABLE)
    if place is None:
        return {}
    meant = {"log.file": place}
    if place == "-":
        meant = {"log.file": "false", "log.console": "true", "log.console.stdio": "stdout"}
    return {key: SettingText(text, LOGS_VARIABLE) for key, text in meant.items()}


def _key_of(variable: str) -> str | None:
    """Return the key of a variable. Spark's own keys have capitals and dots, so no variable can name them."""
    for one in SETTINGS:
        if variable == _variable_of(one.prefix):
            return one.prefix
    for one in SETTINGS:
        name = variable.removeprefix(_variable_of(one.prefix) + "_")
        if one.is_family and one.prefix != "spark.conf" and name != variable:
            return f"{one.prefix}.{name.lower()}"
    return None


def _variable_of(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


def _lines(one: Setting, given: Mapping[str, SettingText]) -> list[tuple[str, str]]:
    own = {key: text for key, text in given.items() if one.takes(key)}
    if not own:
        defaults = {f"{one.prefix}.{name}": text for name, text in one.defaults.items()}
        own = {
            key: SettingText(text, "default") for key, text in (defaults or {one.key: one.default}).items()
        }
    return [(_line(one, key, text.text), text.origin) for key, text in own.items()]


def _line(one: Setting, key: str, text: str) -> str:
    if one.hides(key, text):
        return f"# {key} is not shown"
    if "$" in key:
        return f"# {key}"
    value = text if key == one.prefix and one.is_family else one.kind.show(one.kind.parse(text))
    return render_line(key, value)
