"""A file of LavinMQ's is read for what Leveret has; whatever else stands in it is refused by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.config import load
from leveret.config.lavinmq import _ADVICE, _SAME, parse_ini
from leveret.config.tree import SETTINGS
from leveret.model.errors import ConfigError

FILE = """\
; of a leader
[main]
log_level = warn
default_user = admin
sync = false

[amqp]
bind = 0.0.0.0
port = 5673
tls_port = -1
heartbeat = 30
max_message_size = 1000000

[mgmt]
bind = ::1
port = 15673

[replication]
bind = 10.0.0.1
port = 5680
# and of a follower
follow = tcp://localhost:5679
"""


def test_a_file_of_lavinmq_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lavinmq.ini"
    path.write_text(FILE)
    config = load(path)
    assert [str(address) for address in config.listeners.amqp] == ["0.0.0.0:5673"]
    assert config.storage.durability == "os"
    assert config.access.default_user == "admin"
    assert (config.followers.bind, config.followers.port) == ("10.0.0.1", 5680)
    assert str(config.followers.follow) == "tcp://localhost:5679"
    assert parse_ini(FILE, "f")["log.console.level"] == ("warning", "f:3")


def test_addresses_of_one_bind_are_told_apart() -> None:
    given = parse_ini("[amqp]\nbind = ::1\ntls_port = 5671\n", "f")
    assert given == {
        "listeners.tcp.lavinmq": ("[::1]:5672", "f:2"),
        "listeners.ssl.lavinmq": ("[::1]:5671", "f:3"),
    }
    assert parse_ini("[amqp]\nport = 5\n", "f") == {"listeners.tcp.lavinmq": ("127.0.0.1:5", "f:2")}


def test_without_its_plain_port_nothing_listens_without_tls(tmp_path: Path) -> None:
    path = tmp_path / "lavinmq.ini"
    path.write_text("[amqp]\nport = -1\ntls_port = 5671\n")
    config = load(path)
    assert config.listeners.amqp == ()
    assert [str(address) for address in config.listeners.amqp_tls] == ["127.0.0.1:5671"]


def test_a_cluster_of_lavinmq_s_is_followers_that_etcd_chooses_among() -> None:
    text = (
        "[clustering]\nenabled = true\netcd_endpoints = 10.0.0.5:2379\nadvertised_uri = tcp://10.0.0.1:5679\n"
    )
    assert {key: each.text for key, each in parse_ini(text, "f").items()} == {
        "cluster.etcd.endpoints": "10.0.0.5:2379",
        "replication.advertised_uri": "tcp://10.0.0.1:5679",
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[replication]\nbind =\nport = 5679\n", r"f:2: \[replication\] bind has no value"),
        (
            "[main]\n\ndata_dir = /var/lib/lavinmq\n",
            r"f:3: \[main\] data_dir is a setting of LavinMQ .* --data-dir",
        ),
        (
            "[amqp]\nconsumer_timeout = 5\n",
            r"f:2: \[amqp\] consumer_timeout is a setting of LavinMQ .* remove the line",
        ),
        ("[mqtt]\nport = 1883\n", r"f:1: Leveret has no settings of LavinMQ's section \[mqtt\]"),
        ("port = 5679\n", r"f:1: 'port' is not a setting of the form 'key = value' in a \[section\]"),
        ("[amqp]\nport\n", r"f:2: 'port' is not a setting"),
        (
            "[clustering]\netcd_endpoints = 10.0.0.5:2379\n",
            r"f:2: \[clustering\] etcd_endpoints has no effect without",
        ),
    ],
)
def test_what_leveret_has_not_is_refused_by_its_line(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse_ini(text, "f")


def test_a_value_that_is_not_allowed_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "lavinmq.ini"
    path.write_text("[amqp]\nheartbeat = often\n")
    with pytest.raises(ConfigError, match=r"lavinmq\.ini:2: heartbeat"):
        load(path)


def test_every_key_becomes_a_setting_that_there_is() -> None:
    for section, keys in _SAME.items():
        for target in keys.values():
            assert any(one.takes(target) for one in SETTINGS), (section, target)
    assert not {(section, key) for section, keys in _SAME.items() for key in keys} & set(_ADVICE)
