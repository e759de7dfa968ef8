"""Every setting of a node, declared once, and the frozen tree they are read into.

`leveret.conf` has RabbitMQ's form and key names, so an operator's file mostly works as it is. What
a key means, takes and defaults to stands here and nowhere else: errors, `--print-config` and
`docs/configuration.md` are made from it. Slices of the tree are passed down; nobody imports a setting.

Later wins: defaults, the file, the environment (`LEVERET_` and the key in capitals with `_` for `.`),
overrides.
"""

# ruff: noqa: RUF009 - `setting` and `family` make a dataclass field with a default factory of its own.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leveret.config.kinds import (
    LOOPBACK,
    Address,
    Bytes,
    Choice,
    Directory,
    Duration,
    Flag,
    HostText,
    Integer,
    Ip,
    Listener,
    OptionalDuration,
    OptionalText,
    Regex,
    Text,
)
from leveret.config.settings import Setting, check_known, family, read_tree, setting, settings_of
from leveret.config.syntax import Given, parse_lines, render_line
from leveret.model.errors import ConfigError

__all__ = ["SETTINGS", "Address", "Config", "Setting", "gather", "load", "render", "unknown_variables"]

ENVIRONMENT_PREFIX: Final = "LEVERET_"
LOCAL_KINDS: Final = (
    "users",
    "vhosts",
    "policies",
    "global_parameters",
    "parameters",
    "queues",
    "exchanges",
    "bindings",
    "permissions",
    "operator_policies",
)
_MODES: Final = Choice(("upstream", "downstream"))
_NAME: Final = "leveret@$HOST"


def _addresses(members: dict[str, Address]) -> tuple[Address, ...]:
    return tuple(members.values())


def _mapping(members: dict[str, str]) -> dict[str, str]:
    return members


def _chosen(members: dict[str, bool]) -> frozenset[str]:
    return frozenset(name for name, chosen in members.items() if chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Where clients connect; each is a tuple of addresses, empty for none."""

    amqp: tuple[Address, ...] = family(
        "listeners.tcp",
        Listener(),
        {"default": f"{LOOPBACK}:5672"},
        "Where AMQP 0-9-1 and AMQP 1.0 clients connect. `listeners.tcp = none` for nowhere.",
        collect=_addresses,
    )
    stream: tuple[Address, ...] = family(
        "stream.listeners.tcp",
        Listener(),
        {"default": f"{LOOPBACK}:5552"},
        "Where stream clients and downstreams connect. `stream.listeners.tcp = none` for nowhere.",
        collect=_addresses,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Management:
    """Where the HTTP API answers over TCP."""

    ip: str = setting("management.tcp.ip", Ip(), LOOPBACK, "IP address of the HTTP API.")
    port: int = setting("management.tcp.port", Integer(0, 65535), "15672", "TCP port of the HTTP API.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who exists after the first start, and from where they may log in."""

    default_user: str = setting(
        "default_user", Text(), "guest", "User made on the first start, an administrator."
    )
    default_pass: str = setting("default_pass", Text(secret=True), "guest", "Password of that user.")
    default_vhost: str = setting("default_vhost", Text(), "/", "Virtual host made on the first start.")
    loopback_users: frozenset[str] = family(
        "loopback_users",
        Flag(),
        {"guest": "true"},
        "Users who may log in from this machine only. `loopback_users = none` lets all in from anywhere.",
        collect=_chosen,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Amqp:
    """What an AMQP 0-9-1 connection is offered."""

    heartbeat_s: int = setting(
        "heartbeat", Integer(0, 65535), "60", "Heartbeat offered to clients in seconds; 0 for none."
    )
    frame_max_bytes: int = setting(
        "frame_max", Bytes(4096, 2**31 - 1), "131072", "Largest AMQP frame offered to clients."
    )
    channel_max: int = setting(
        "channel_max", Integer(1, 65535), "2047", "Most channels of a connection offered to clients."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """When data counts as written, and in what pieces."""

    durability: str = setting(
        "durability",
        Choice(("fsync", "os")),
        "fsync",
        "`fsync` confirms a message once it is on disk, `os` once the operating system has it: "
        "then a loss of power can undo what was confirmed.",
    )
    segment_bytes_max: int = setting(
        "segment_bytes_max", Bytes(65_536, 2**31), "64MiB", "A segment file of a log is closed at this size."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What the node tells about itself."""

    level: str = setting(
        "log.level",
        Choice(("debug", "info", "warning", "error", "critical", "none")),
        "info",
        "Least severity that is logged.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSync:
    """Schema replication; `locals_` are expressions by kind of entity."""

    operating_mode: str = setting(
        "schema_definition_sync.operating_mode",
        _MODES,
        "upstream",
        "An `upstream` serves its definitions, a `downstream` follows those of its upstream.",
    )
    minimum_sync_interval_ms: int = setting(
        "schema_definition_sync.downstream.minimum_sync_interval",
        Duration(100),
        "30s",
        "A downstream asks for changes this often, or as often as it can apply them.",
    )
    locals_: dict[str, str] = family(
        "schema_definition_sync.downstream.locals",
        Regex(),
        {},
        "Entities of a downstream that match are its own: neither overwritten nor deleted. "
        "Take `global_parameters = ^standby` where messages are replicated as well.",
        collect=_mapping,
        names=LOCAL_KINDS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """Message replication; limits are per virtual host, None for none."""

    operating_mode: str = setting(
        "standby.replication.operating_mode",
        _MODES,
        "upstream",
        "An `upstream` collects messages for others, a `downstream` transfers those of its upstream.",
    )
    retention_bytes_max: int = setting(
        "standby.replication.retention.size_limit.messages",
        Bytes(1),
        "5GB",
        "An upstream keeps at most this much of the outgoing log of a virtual host.",
    )
    retention_ms_max: int | None = setting(
        "standby.replication.retention.time_limit.messages",
        OptionalDuration(Duration(1)),
        "none",
        "An upstream keeps a message for downstreams at most this long.",
    )
    data_dir: Path | None = setting(
        "standby.replication.downstream.data_dir",
        Directory(),
        "none",
        "Where a downstream keeps what it transferred; none for `standby` in the data directory.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """How the pipeline's Spark runs."""

    master: str | None = setting(
        "spark.master", OptionalText(), "none", "Spark master of the pipeline; none for this machine."
    )
    conf: dict[str, str] = family(
        "spark.conf",
        Text(),
        {},
        "Any setting of Spark by its own name, as in `spark.conf.spark.sql.shuffle.partitions = 4`.",
        collect=_mapping,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of a node's settings."""

    node_name: str = setting("nodename", HostText(), _NAME, "This node's name.")
    cluster_name: str = setting(
        "cluster_name", HostText(), _NAME, "The cluster's name, by which its peers know it."
    )
    listeners: Listeners = field(default_factory=Listeners)
    management: Management = field(default_factory=Management)
    access: Access = field(default_factory=Access)
    amqp: Amqp = field(default_factory=Amqp)
    storage: Storage = field(default_factory=Storage)
    log: Log = field(default_factory=Log)
    schema_sync: SchemaSync = field(default_factory=SchemaSync)
    standby: Standby = field(default_factory=Standby)
    spark: Spark = field(default_factory=Spark)


SETTINGS: Final = list(settings_of(Config))


def load(path: Path | None, overrides: Mapping[str, str] | None = None) -> Config:
    """Read the file, if any, and put `overrides` (key -> text) on top.

    Raises:
        ConfigError: the file can not be read, a key is unknown or a value not allowed.
    """
    return build(gather(path, overrides=overrides))


def gather(
    path: Path | None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> dict[str, Given]:
    """All texts that were given, with their places; the later source wins.

    Raises:
        ConfigError: the file can not be read, a line is no setting or a key is unknown.
    """
    given = parse_lines(_text_of(path), str(path)) if path else {}
    given |= _from_environment(environ or {})
    given |= {key: Given(text, "override") for key, text in (overrides or {}).items()}
    check_known(given, SETTINGS)
    return given


def build(given: Mapping[str, Given]) -> Config:
    """The tree from what `gather` found.

    Raises:
        ConfigError: a value is not allowed.
    """
    return read_tree(Config, given)


def render(given: Mapping[str, Given]) -> str:
    """What holds, as a configuration file that says where each line comes from; secrets are left out."""
    return "".join(f"{line:<60} # {origin}\n" for one in SETTINGS for line, origin in _lines(one, given))


def unknown_variables(environ: Mapping[str, str], known: frozenset[str]) -> list[str]:
    """Names of variables that look like settings and are none, `known` ones aside."""
    return sorted(
        name
        for name in environ
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and not _key_of(name)
    )


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 at byte {error.start}") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    pairs = ((_key_of(name), name) for name in sorted(environ))
    return {key: Given(environ[name], name) for key, name in pairs if key}


def _key_of(variable: str) -> str | None:
    """The key a variable stands for. Spark's own keys have capitals and dots, so they can not be given so."""
    for one in SETTINGS:
        spelled = ENVIRONMENT_PREFIX + one.prefix.upper().replace(".", "_")
        if variable == spelled:
            return one.prefix
        name = variable.removeprefix(spelled + "_").lower()
        if one.is_family and one.prefix != "spark.conf" and name != variable.lower():
            return f"{one.prefix}.{name}"
    return None


def _lines(one: Setting, given: Mapping[str, Given]) -> list[tuple[str, str]]:
    own = {key: text for key, text in given.items() if one.takes(key)}
    if not own:
        defaults = {f"{one.prefix}.{name}": text for name, text in one.defaults.items()}
        own = {key: Given(text, "default") for key, text in (defaults or {one.key: one.default}).items()}
    return [(_line(one, key, text.text), text.origin) for key, text in own.items()]


def _line(one: Setting, key: str, text: str) -> str:
    if one.is_secret:
        return f"# {key} is not shown"
    if "$" in key:
        return f"# {key}"
    value = text if key == one.prefix and one.is_family else one.kind.show(one.kind.parse(text))
    return render_line(key, value)
