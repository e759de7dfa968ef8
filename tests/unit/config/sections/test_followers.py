"""Settings of a node that is followed, of one that follows, and of etcd that decides which is which."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.config import build, gather, load, render
from leveret.config.current import settings_in_force
from leveret.config.sections.etcd import EtcdOptions
from leveret.config.sections.followers import Followers
from leveret.config.syntax import SettingText
from leveret.config.uris import EtcdEndpoint, NodeUri
from leveret.model.errors import ConfigError

LEADER = """
replication.bind = 10.0.0.1
replication.port = 5680
replication.advertised_uri = tls://a.example:5680
replication.confirm = in_sync
replication.min_in_sync = 1
replication.below_min_in_sync = nack
replication.ack_timeout = 500ms
replication.bandwidth_limit = 50MB
replication.compression = zstd
replication.scrub_interval = none
replication.max_lag = 1m
replication.ssl_options.certfile = /etc/a.pem
cluster.etcd.endpoints = http://10.0.0.8:2379, http://10.0.0.9:2379
cluster.etcd.prefix = site-1
cluster.etcd.lease_ttl = 5s
"""


def conf(folder: Path, text: str) -> Path:
    path = folder / "leveret.conf"
    path.write_text(text)
    return path


def followers(**overrides: str) -> Followers:
    return build(
        gather(overrides={key.replace("__", "."): text for key, text in overrides.items()})
    ).followers


def test_without_settings_nobody_follows_and_nothing_is_followed() -> None:
    assert load(None).followers == Followers()
    assert Followers() == Followers(
        bind=None,
        port=5679,
        follow=None,
        advertised_uri=None,
        confirm="in_sync",
        min_in_sync=0,
        below_min_in_sync="block",
        ack_timeout_ms=3_000,
        bandwidth_bytes_s=None,
        compression="none",
        apply_delay_ms=0,
        scrub_interval_ms=7 * 86_400_000,
        max_lag_ms=30_000,
    )
    assert load(None).etcd == EtcdOptions()
    assert EtcdOptions() == EtcdOptions(endpoints=(), prefix="leveret", cacertfile=None, lease_ttl_ms=2_000)


def test_a_leader_s_file_is_read(tmp_path: Path) -> None:
    config = load(conf(tmp_path, LEADER))
    read, etcd = config.followers, config.etcd
    assert (read.bind, read.port, read.advertised_uri) == (
        "10.0.0.1",
        5680,
        NodeUri("tls", "a.example", 5680),
    )
    assert (read.confirm, read.min_in_sync, read.below_min_in_sync) == ("in_sync", 1, "nack")
    assert (read.ack_timeout_ms, read.bandwidth_bytes_s, read.compression) == (500, 50_000_000, "zstd")
    assert (read.scrub_interval_ms, read.max_lag_ms, read.tls.certfile) == (None, 60_000, Path("/etc/a.pem"))
    assert etcd.endpoints == (EtcdEndpoint("http://10.0.0.8:2379"), EtcdEndpoint("http://10.0.0.9:2379"))
    assert (etcd.prefix, etcd.lease_ttl_ms) == ("site-1", 5_000)


def test_a_follower_s_file_is_read(tmp_path: Path) -> None:
    read = load(conf(tmp_path, "replication.follow = tcp://leader.example")).followers
    assert read.follow == NodeUri("tcp", "leader.example", 5679)


def test_a_delayed_follower_s_file_is_read(tmp_path: Path) -> None:
    read = load(conf(tmp_path, "replication.follow = tcp://a\nreplication.apply_delay = 30m\n")).followers
    assert read.apply_delay_ms == 1_800_000


def test_a_delayed_follower_cannot_be_elected(tmp_path: Path) -> None:
    text = "replication.apply_delay = 30m\nreplication.bind = 10.0.0.1\ncluster.etcd.endpoints = http://10.0.0.8:2379\n"
    with pytest.raises(ConfigError, match=r"replication\.apply_delay lets this node go back in time"):
        load(conf(tmp_path, text))


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("replication.bind = localhost", "an IP address such as 127.0.0.1, 0.0.0.0 or ::1, or none"),
        ("replication.port = -1", "a whole number from 0 to 65535"),
        ("replication.follow = localhost:5679", "tcp://HOST:PORT or tls://HOST:PORT"),
        ("replication.confirm = always", "one of in_sync, local"),
        ("replication.below_min_in_sync = drop", "one of block, nack"),
        ("replication.compression = lz4", "one of none, zstd"),
        ("replication.ack_timeout = 0s", "a duration of 100 ms to ten years"),
        ("replication.bandwidth_limit = fast", "a size of at least 1024 bytes"),
        ("cluster.etcd.endpoints = 10.0.0.8:2379", "URLs between commas such as http://10.0.0.1:2379"),
    ],
)
def test_a_malformed_value_is_named_with_what_is_allowed(tmp_path: Path, line: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(conf(tmp_path, line))
    assert f"leveret.conf:1: {line.partition(' ')[0]} = " in str(refused.value)
    assert allowed in str(refused.value)


# --- what contradicts itself ---------------------------------------------------------------------


def test_followers_that_must_be_in_sync_are_waited_for() -> None:
    with pytest.raises(
        ConfigError, match=r"^--set: replication\.min_in_sync .* replication\.confirm = local"
    ):
        followers(replication__min_in_sync="1", replication__confirm="local")
    assert followers(replication__min_in_sync="0", replication__confirm="local").confirm == "local"


def test_a_follower_that_may_be_elected_is_waited_for() -> None:
    """Only one that has all that was confirmed may, and with `local` nobody knows of any."""
    elected = {"cluster__etcd__endpoints": "http://127.0.0.1:2379", "replication__bind": "127.0.0.1"}
    with pytest.raises(
        ConfigError, match=r"^--set: replication\.confirm = local .* cluster\.etcd\.endpoints"
    ):
        followers(**elected, replication__confirm="local")
    assert followers(**elected).confirm == "in_sync"


def test_etcd_may_make_a_node_the_leader_so_others_must_find_it(tmp_path: Path) -> None:
    path = conf(tmp_path, "cluster.etcd.endpoints = http://root:s3cret@10.0.0.8\n")
    with pytest.raises(
        ConfigError, match=r"leveret\.conf:1: cluster\.etcd\.endpoints .*: set replication\.bind"
    ) as failure:
        load(path)
    assert "s3cret" not in str(failure.value)
    for anywhere in ("0.0.0.0", "::"):
        with pytest.raises(
            ConfigError, match=rf"replication\.bind = {anywhere} .*: set replication\.advertised_uri$"
        ):
            load(path, {"replication.bind": anywhere})
        read = load(path, {"replication.bind": anywhere, "replication.advertised_uri": "tcp://a"})
        assert read.followers.bind == anywhere
    assert load(path, {"replication.bind": "10.0.0.1"}).followers.bind == "10.0.0.1"


def test_etcd_s_leases_are_in_whole_seconds() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.etcd\.lease_ttl is not a whole number of seconds"):
        followers(cluster__etcd__lease_ttl="1500ms")


# --- secrets -------------------------------------------------------------------------------------


def test_a_password_of_etcd_is_shown_nowhere(tmp_path: Path) -> None:
    path = conf(
        tmp_path, "replication.bind = 10.0.0.1\ncluster.etcd.endpoints = http://a, http://root:s3cret@b\n"
    )
    config = load(path)
    assert config.etcd.endpoints[1].password == "s3cret"
    assert "s3cret" not in render(gather(path)) + repr(config) + str(dict(settings_in_force(config)))
    assert "# cluster.etcd.endpoints is not shown" in render(gather(path))
    with pytest.raises(ConfigError, match=r"cluster\.etcd\.endpoints = \(secret\) is not valid") as refused:
        load(conf(tmp_path, "cluster.etcd.endpoints = http://root:s3cret@b/v3\n"))
    assert "s3cret" not in str(refused.value)


def test_endpoints_with_a_password_are_not_taken_from_the_command_line() -> None:
    with pytest.raises(ConfigError, match=r"LEVERET_CLUSTER_ETCD_ENDPOINTS") as refused:
        gather(overrides={"cluster.etcd.endpoints": "http://root:s3cret@b"})
    assert "s3cret" not in str(refused.value)


def test_endpoints_without_a_password_are_shown_and_may_be_set_anywhere() -> None:
    given = gather(overrides={"cluster.etcd.endpoints": "http://a", "replication.bind": "10.0.0.1"})
    assert "cluster.etcd.endpoints = http://a:2379" in render(given)
    assert dict(settings_in_force(build(given)))["cluster.etcd.endpoints"] == "http://a:2379"


# --- flags ---------------------------------------------------------------------------------------


def test_a_flag_wins_over_every_other_source_and_is_named(tmp_path: Path) -> None:
    path = conf(tmp_path, "replication.port = 1\n")
    given = gather(
        path,
        environ={"LEVERET_REPLICATION_PORT": "2"},
        overrides={"replication.port": "3"},
        flags={"replication.port": SettingText("4", "--replication-port")},
    )
    assert build(given).followers.port == 4
    assert given["replication.port"].origin == "--replication-port"
