"""Reads LavinMQ's `lavinmq.ini`: each key becomes the corresponding setting, or an error that names its line.

A line that is accepted without effect would be a trap, as in Leveret's own file. The corresponding setting decides
which values are allowed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from leveret.config.kinds import NONE
from leveret.config.syntax import SettingText
from leveret.model.addresses import bracketed
from leveret.model.errors import ConfigError

SUFFIX: Final = ".ini"
_DEFAULT_BIND: Final = "127.0.0.1"
_NOWHERE: Final = "-1"
_AMQP: Final = {"port": "listeners.tcp.lavinmq", "tls_port": "listeners.ssl.lavinmq"}
"""Ports that share one `bind` in LavinMQ; a setting of Leveret has address and port."""

_SAME: Final = {
    "main": {
        "default_user": "default_user",
        "log_file": "log.file",
        "log_level": "log.console.level",
        "sync": "durability",
        "tls_cert": "ssl_options.certfile",
        "tls_key": "ssl_options.keyfile",
    },
    "amqp": {
        "channel_max": "channel_max",
        "frame_max": "frame_max",
        "heartbeat": "heartbeat",
        "max_message_size": "max_message_size",
    },
    "mgmt": {
        "bind": "management.tcp.ip",
        "port": "management.tcp.port",
    },
    "replication": {
        "bind": "replication.bind",
        "follow": "replication.follow",
        "port": "replication.port",
    },
    "clustering": {
        "advertised_uri": "replication.advertised_uri",
        "bind": "replication.bind",
        "etcd_endpoints": "cluster.etcd.endpoints",
        "etcd_prefix": "cluster.etcd.prefix",
        "port": "replication.port",
    },
}
_OTHER_NAMES: Final = {"http": "mgmt"}
_VALUES: Final = {
    "durability": {"true": "fsync", "false": "os"},
    "log.console.level": {"trace": "debug", "notice": "info", "warn": "warning", "fatal": "critical"},
}
"""LavinMQ's words for values that have other words here."""
_ADVICE: Final = {
    ("main", "data_dir"): "name the directory by --data-dir",
    ("main", "default_password"): "Leveret does not accept LavinMQ's hashes: see default_pass",
    ("main", "default_password_hash"): "Leveret does not accept LavinMQ's hashes: see default_pass",
    ("mgmt", "tls_port"): "see management.ssl.port in leveret.conf",
}


class Line(NamedTuple):
    """One setting of the file."""

    section: str
    key: str
    value: str
    place: str


def is_lavinmq(name: str) -> bool:
    """Return whether a file of that name is read as LavinMQ's."""
    return name.endswith(SUFFIX)


def parse_ini(text: str, name: str) -> dict[str, SettingText]:
    """Parse a file's text; `name` is the file's name, for errors.

    Raises:
        ConfigError: a line is no setting, lacks a value, or sets what Leveret does not have; the text names the line.
    """
    lines = _lines(text, name)
    given: dict[str, SettingText] = {}
    for line in lines:
        target = _SAME[line.section].get(line.key)
        if target is not None:
            given[target] = SettingText(_VALUES.get(target, {}).get(line.value, line.value), line.place)
        elif (line.section, line.key) != ("clustering", "enabled") and line.section != "amqp":
            raise _refused(line)
    _check_clustering(lines)
    return given | _listeners([line for line in lines if line.section == "amqp"])


def _lines(text: str, name: str) -> list[Line]:
    found: list[Line] = []
    section = ""
    for number, row in enumerate(text.splitlines(), start=1):
        place, row = f"{name}:{number}", row.strip()
        if not row or row.startswith((";", "#")):
            continue
        if row.startswith("[") and row.endswith("]"):
            section = _OTHER_NAMES.get(row[1:-1].strip(), row[1:-1].strip())
            if section not in _SAME:
                raise ConfigError(
                    f"{place}: Leveret has no settings of LavinMQ's section {row}: remove the section"
                )
            continue
        key, equals, value = (part.strip() for part in row.partition("="))
        if not equals or not section:
            # Without a `=`, a secret may stand behind the key.
            word = key.split()[0] if key else "="
            raise ConfigError(f"{place}: '{word}' is not a setting of the form 'key = value' in a [section]")
        if not value:
            raise ConfigError(f"{place}: [{section}] {key} has no value: name one, or remove the line")
        found.append(Line(section, key, value, place))
    return found


def _listeners(lines: list[Line]) -> dict[str, SettingText]:
    """Make listeners from the ports and the one address of a section; refuse the other keys of the section."""
    bind = next((line for line in lines if line.key == "bind"), None)
    ports = [line for line in lines if line.key in _AMQP]
    for line in lines:
        if line is not bind and line not in ports and line.key not in _SAME["amqp"]:
            raise _refused(line)
    if bind is not None and not any(line.key == "port" for line in ports):
        ports.append(Line("amqp", "port", "5672", bind.place))
    host = _DEFAULT_BIND if bind is None else bind.value
    found = {}
    for line in ports:
        if line.value != _NOWHERE:
            found[_AMQP[line.key]] = SettingText(f"{bracketed(host)}:{line.value}", line.place)
        elif line.key == "port":
            # Without a word there would be Leveret's own default listener.
            found["listeners.tcp"] = SettingText(NONE, line.place)
    return found


def _check_clustering(lines: list[Line]) -> None:
    """Refuse etcd addresses without enabled clustering: LavinMQ ignores them then."""
    enabled = next(
        (line.value for line in lines if (line.section, line.key) == ("clustering", "enabled")), "false"
    )
    for line in lines:
        if line.section == "clustering" and line.key.startswith("etcd_") and enabled != "true":
            raise ConfigError(
                f"{line.place}: [clustering] {line.key} has no effect without enabled = true: remove one of them"
            )


def _refused(line: Line) -> ConfigError:
    advice = _ADVICE.get((line.section, line.key), "remove the line")
    return ConfigError(
        f"{line.place}: [{line.section}] {line.key} is a setting of LavinMQ that Leveret does not support: {advice}"
    )
