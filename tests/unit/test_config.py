from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveret.config import SETTINGS, Address, Config, build, gather, load, render, unknown_variables
from leveret.config.example import example as example_file
from leveret.config.example import lines_of
from leveret.config.kinds import Bytes, Duration, Listener
from leveret.config.reference import reference
from leveret.config.settings import Setting, check_known
from leveret.config.syntax import SettingText, parse_lines, render_line
from leveret.config.unsupported_keys import is_unsupported_key
from leveret.model.durations import DURATION_MS_MAX
from leveret.model.errors import ConfigError

PROJECT = Path(__file__).parents[2]

DOWNSTREAM = """
# passive (standby) cluster name
cluster_name = eu.2

standby.replication.operating_mode = downstream
standby.replication.retention.size_limit.messages = 5000000000
standby.replication.retention.time_limit.messages = 12h

schema_definition_sync.operating_mode = downstream
# initiate sync operations every 30 seconds
schema_definition_sync.downstream.minimum_sync_interval = 30
schema_definition_sync.downstream.locals.global_parameters = ^standby
schema_definition_sync.downstream.locals.exchanges = ^important-exchange-[a-z]+
"""


def conf(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "leveret.conf"
    path.write_text(text)
    return path


def error_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(conf(tmp_path, text))
    return str(caught.value)


def test_without_a_file_every_listener_is_on_loopback() -> None:
    config = load(None)
    assert config == Config()
    assert config.listeners.amqp == (Address("127.0.0.1", 5672),)
    assert config.listeners.stream == (Address("127.0.0.1", 5552),)
    assert (config.management.ip, config.management.port) == ("127.0.0.1", 15672)
    assert config.access.loopback_users == {"guest"}


def test_the_files_of_the_replication_guides_are_read(tmp_path: Path) -> None:
    config = load(conf(tmp_path, DOWNSTREAM))
    assert config.cluster_name == "eu.2"
    assert config.standby.operating_mode == "downstream"
    assert config.standby.retention_bytes_max == 5_000_000_000
    assert config.standby.retention_ms_max == 12 * 3_600_000
    assert config.schema_sync.operating_mode == "downstream"
    assert config.schema_sync.minimum_sync_interval_ms == 30_000
    assert config.schema_sync.locals_ == {
        "global_parameters": "^standby",
        "exchanges": "^important-exchange-[a-z]+",
    }


def test_a_listener_that_is_given_replaces_the_default(tmp_path: Path) -> None:
    config = load(conf(tmp_path, "listeners.tcp.1 = 0.0.0.0:5673\nlisteners.tcp.2 = [::1]:5674"))
    assert config.listeners.amqp == (Address("0.0.0.0", 5673), Address("::1", 5674))


def test_a_bare_port_listens_on_loopback(tmp_path: Path) -> None:
    assert load(conf(tmp_path, "listeners.tcp.default = 5673")).listeners.amqp == (
        Address("127.0.0.1", 5673),
    )


def test_listeners_none_opens_no_port(tmp_path: Path) -> None:
    assert load(conf(tmp_path, "stream.listeners.tcp = none")).listeners.stream == ()


@pytest.mark.parametrize("text", ["loopback_users = none", "loopback_users.guest = false"])
def test_guest_may_be_let_in_from_anywhere(tmp_path: Path, text: str) -> None:
    assert load(conf(tmp_path, text)).access.loopback_users == frozenset()


def test_spark_settings_pass_through_by_their_own_names(tmp_path: Path) -> None:
    text = "spark.master = spark://host:7077\nspark.conf.spark.sql.shuffle.partitions = 4"
    spark = load(conf(tmp_path, text)).spark
    assert spark.master == "spark://host:7077"
    assert spark.conf == {"spark.sql.shuffle.partitions": "4"}


def test_a_hash_begins_a_comment_unless_it_is_quoted(tmp_path: Path) -> None:
    text = "default_user = me # not I\ndefault_pass = 's3# ret = x'  # quoted"
    access = load(conf(tmp_path, text)).access
    assert access.default_user == "me"
    assert access.default_pass == "s3# ret = x"


def test_of_a_key_given_twice_the_last_line_counts(tmp_path: Path) -> None:
    assert load(conf(tmp_path, "heartbeat = 1\nheartbeat = 2")).amqp.heartbeat_s == 2


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_one(tmp_path: Path) -> None:
    message = error_of(tmp_path, "\nlistenrs.tcp.1 = 127.0.0.1:5672")
    assert "leveret.conf:2" in message
    assert "unknown setting 'listenrs.tcp.1'" in message
    assert "did you mean 'listeners.tcp.$name'?" in message


def test_an_unknown_kind_of_local_names_those_that_are_known(tmp_path: Path) -> None:
    message = error_of(tmp_path, "schema_definition_sync.downstream.locals.quues = x")
    assert "queues" in message
    assert "global_parameters" in message


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "cluster_formation.k8s.host = a",
            "nodes of a cluster find each other through cluster.etcd.endpoints",
        ),
        ("mqtt.listeners.tcp.default = 1883", "MQTT is not served"),
        ("hipe_compile = true", "it is a setting of RabbitMQ that Leveret does not support"),
        ("net_ticktime = 60", "it is a setting of RabbitMQ that Leveret does not support"),
        *(
            (f"ssl_options.{name} = true", "it is a setting of RabbitMQ that Leveret does not support")
            for name in ("depth", "honor_ecc_order", "secure_renegotiate", "reuse_sessions")
        ),
        ("log.syslog.ip = 10.0.0.1", "it is a setting of RabbitMQ that Leveret does not support"),
        ("raft.wal_max_size_bytes = 1", "it is a setting of RabbitMQ that Leveret does not support"),
        ("definitions.local.pth = /d", "did you mean 'definitions.local.path'?"),
    ],
)
def test_a_key_of_rabbitmq_that_is_not_served_is_refused_as_such(
    tmp_path: Path, line: str, advice: str
) -> None:
    message = error_of(tmp_path, line)
    assert f"leveret.conf:1: unknown setting '{line.partition(' ')[0]}'" in message
    assert advice in message


def test_a_key_that_is_served_is_known_though_rabbitmq_has_it_too() -> None:
    served = {one.key.replace("$name", (*one.names, "a")[0]): SettingText("", "") for one in SETTINGS}
    assert any(is_unsupported_key(key) for key in served)
    check_known(served, SETTINGS)


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("heartbeat = sixty", "a whole number from 0 to 65535"),
        ("heartbeat = 65536", "a whole number from 0 to 65535"),
        ("durability = maybe", "one of fsync, os"),
        ("standby.replication.operating_mode = sideways", "one of upstream, downstream"),
        ("segment_bytes_max = 12 parsecs", "a size of at least 65536 bytes"),
        ("segment_bytes_max = 1", "a size of at least 65536 bytes"),
        ("schema_definition_sync.downstream.minimum_sync_interval = 1y", "a duration of 100 ms to ten years"),
        ("schema_definition_sync.downstream.locals.users = (", "a regular expression"),
        ("management.tcp.ip = localhost", "an IP address"),
        ("listeners.tcp.1 = 127.0.0.1:70000", "ADDRESS:PORT"),
        ("listeners.tcp = 5672", "none, or lines listeners.tcp.$name = VALUE"),
        ("loopback_users.guest = perhaps", "true or false"),
        ("standby.replication.downstream.data_dir = data", "an absolute path, a URI"),
        ("standby.replication.downstream.data_dir = ftp://host/x", "a URI (file, s3, s3a, gs, az"),
        ("standby.replication.downstream.data_dir = s3://key:x@bucket", "data_dir = (secret) is not valid"),
        ("log.console.level = loud", "one of debug, info"),
        ("log.file = logs/leveret.log", "a file's name, its absolute path, or false"),
        ("log.file.rotation.date = daily", "$D0 (midnight)"),
        ("definitions.import_backend = https", "one of local_filesystem, none"),
        ("no equals sign", "not a setting of the form 'key = value'"),
        ("heartbeat =", "not a setting of the form 'key = value'"),
    ],
)
def test_a_malformed_value_is_named_with_its_line_and_what_is_allowed(
    tmp_path: Path, line: str, allowed: str
) -> None:
    message = error_of(tmp_path, f"# first\n{line}")
    assert message.startswith(f"{tmp_path / 'leveret.conf'}:2: ")
    assert line.partition(" ")[0] in message
    assert allowed in message


def test_a_secret_is_neither_in_errors_nor_in_what_is_printed(tmp_path: Path) -> None:
    assert "s3cret" not in error_of(tmp_path, "default_pass = 's3cret' oops")
    path = conf(tmp_path, "default_pass = s3cret")
    assert "s3cret" not in render(gather(path))
    assert "s3cret" not in repr(load(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.conf: cannot be read"):
        load(tmp_path / "nowhere.conf")
    broken = tmp_path / "broken.conf"
    broken.write_bytes(b"heartbeat = \xff")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 12"):
        load(broken)


def test_the_environment_wins_over_the_file_and_overrides_over_both(tmp_path: Path) -> None:
    path = conf(tmp_path, "heartbeat = 1\nframe_max = 8192\nchannel_max = 7")
    environ = {
        "LEVERET_HEARTBEAT": "2",
        "LEVERET_FRAME_MAX": "16384",
        "LEVERET_LISTENERS_TCP_1": "127.0.0.1:1",
    }
    config = build(gather(path, environ=environ, overrides={"heartbeat": "3"}))
    assert (config.amqp.heartbeat_s, config.amqp.frame_max_bytes, config.amqp.channel_max) == (3, 16384, 7)
    assert config.listeners.amqp == (Address("127.0.0.1", 1),)


def test_an_error_from_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="LEVERET_HEARTBEAT: heartbeat = 'x' is not valid"):
        build(gather(environ={"LEVERET_HEARTBEAT": "x"}))


def test_variables_that_look_like_settings_and_are_none_are_found() -> None:
    environ = {"LEVERET_HARTBEAT": "1", "LEVERET_HEARTBEAT": "1", "LEVERET_DATA_DIR": "d", "HOME": "h"}
    assert unknown_variables(environ, frozenset({"LEVERET_DATA_DIR"})) == ["LEVERET_HARTBEAT"]


def test_what_is_printed_can_be_read_again_and_says_where_it_comes_from(tmp_path: Path) -> None:
    path = conf(tmp_path, DOWNSTREAM + "spark.conf.spark.ui.enabled = false\nlisteners.tcp = none\n")
    printed = render(gather(path))
    assert load(conf(tmp_path, printed)) == load(conf(tmp_path, DOWNSTREAM + path.read_text()))
    lines = {line.split(" = ")[0]: line for line in printed.splitlines()}
    assert lines["cluster_name"].endswith(f"# {path}:3")
    assert lines["heartbeat"].endswith("# default")


def test_every_setting_is_declared_once_and_explained() -> None:
    keys = [one.key for one in SETTINGS]
    assert len(keys) == len(set(keys))
    assert all(one.help.endswith((".", "`.")) for one in SETTINGS)


def test_the_reference_page_is_that_of_the_settings() -> None:
    assert (PROJECT / "docs" / "configuration.md").read_text() == reference()


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("64MiB", 2**26), ("64M", 2**26), ("1 kb", 1000), ("17", 17)]
)
def test_sizes_have_rabbitmqs_units(text: str, size: int) -> None:
    assert Bytes(1).parse(text) == size


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("12h", 43_200_000), ("1h30m", 5_400_000), ("30", 30_000), ("250ms", 250), ("1w", 604_800_000)],
)
def test_durations_have_units_and_plain_numbers_are_seconds(text: str, duration_ms: int) -> None:
    assert Duration(0).parse(text) == duration_ms


@given(st.integers(1, DURATION_MS_MAX))
def test_a_duration_that_is_shown_is_read_back(duration_ms: int) -> None:
    assert Duration(1).parse(Duration(1).show(duration_ms)) == duration_ms


@given(st.ip_addresses(), st.integers(0, 65535))
def test_a_listener_that_is_shown_is_read_back(ip: object, port: int) -> None:
    address = Address(str(ip), port)
    assert Listener().parse(Listener().show(address)) == address


@given(st.text(st.characters(exclude_characters="'", exclude_categories=["Cc", "Cs"])))
def test_any_value_without_a_single_quote_can_be_written(value: str) -> None:
    assert parse_lines(render_line("a.key", value), "f", str)["a.key"].text == value


@given(st.text(st.sampled_from("ab.=# '$(<)\\\n\té"), max_size=60))
def test_any_text_is_settings_or_an_error_that_names_a_line(text: str) -> None:
    problem = ""
    try:
        parse_lines(text, "f", str)
    except ConfigError as error:
        problem = str(error)
    assert re.match(r"f:[0-9]+: |$", problem)


_DIGITS_AND_MARKS = "0123456789.:[]ab$DHWMsmhKGiBT/*+{}()|?^-none,truefals\u00b2\u2460\x00"


@given(st.sampled_from(SETTINGS), st.text(st.sampled_from(_DIGITS_AND_MARKS), max_size=30))
@example(next(one for one in SETTINGS if "regular expression" in one.allowed), "a{99999999999999999999}")
@example(next(one for one in SETTINGS if "regular expression" in one.allowed), "(" * 5000)
@example(next(one for one in SETTINGS if one.key == "heartbeat"), "9" * 5000)
def test_any_text_is_a_value_or_not_allowed_and_a_value_that_is_shown_is_read_back(
    one: Setting, text: str
) -> None:
    key = one.key.replace("$name", (*one.names, "a")[0])
    try:
        value = one.read({key: SettingText(text, "f:1")})
    except ConfigError:
        return
    assert one.is_family or one.kind.parse(one.kind.show(value)) == value


def test_a_key_may_have_a_dot_that_does_not_divide_it(tmp_path: Path) -> None:
    access = load(conf(tmp_path, r"loopback_users.j\.doe = true")).access
    assert access.loopback_users == {"j.doe"}


def test_a_value_may_be_the_first_line_of_a_file_beside(tmp_path: Path) -> None:
    (tmp_path / "pass").write_text("s3# cret\n")
    assert load(conf(tmp_path, "default_pass = $(<pass)")).access.default_pass == "s3# cret"
    message = error_of(tmp_path, "heartbeat = 1\ndefault_pass = $(<nowhere)")
    assert message.startswith(
        f"{tmp_path / 'leveret.conf'}:2: default_pass: {tmp_path / 'nowhere'}: cannot be read"
    )


def test_a_value_is_not_taken_from_another_key(tmp_path: Path) -> None:
    assert "write the value" in error_of(tmp_path, "cluster_name = $(nodename)")


def test_the_files_of_a_directory_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    directory = tmp_path / "conf.d"
    directory.mkdir()
    (directory / "20.conf").write_text("heartbeat = 20\nchannel_max = 20")
    (directory / "10.conf").write_text("heartbeat = 10\nframe_max = 10000")
    (directory / "30.conf.off").write_text("heartbeat = 30")
    amqp = build(gather(conf(tmp_path, "channel_max = 1\nheartbeat = 1"), directory)).amqp
    assert (amqp.heartbeat_s, amqp.frame_max_bytes, amqp.channel_max) == (20, 10000, 20)


def test_none_on_a_later_line_takes_back_what_came_before(tmp_path: Path) -> None:
    given = gather(conf(tmp_path, "listeners.tcp.1 = 127.0.0.1:1"), environ={"LEVERET_LISTENERS_TCP": "none"})
    assert build(given).listeners.amqp == ()


def test_a_secret_is_not_taken_from_the_command_line() -> None:
    with pytest.raises(ConfigError, match=r"--set: default_pass is a secret.*LEVERET_DEFAULT_PASS") as caught:
        gather(overrides={"default_pass": "s3cret"})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "file", "stdio"), [("-", None, "stdout"), ("/var/log/l.log", Path("/var/log/l.log"), "stderr")]
)
def test_the_variable_of_the_logs_is_a_file_or_standard_output(
    place: str, file: Path | None, stdio: str
) -> None:
    log = build(gather(environ={"LEVERET_LOGS": place})).log
    assert (log.file.name, log.console.stdio) == (file, stdio)
    assert unknown_variables({"LEVERET_LOGS": place}, frozenset()) == []


def test_no_two_settings_share_a_variable() -> None:
    variables = ["LEVERET_" + one.prefix.upper().replace(".", "_") for one in SETTINGS]
    assert len(variables) == len(set(variables))
    for one, variable in zip(SETTINGS, variables, strict=True):
        if not one.is_family:
            assert one.key in gather(environ={variable: one.default})


def test_the_first_users_permissions_and_tags_are_rabbitmqs_keys(tmp_path: Path) -> None:
    text = "default_user_tags.management = true\ndefault_permissions.write = ^app"
    access = load(conf(tmp_path, text)).access
    assert access.default_tags == {"management"}
    assert (access.default_configure, access.default_write, access.default_read) == (".*", "^app", ".*")


def test_the_example_file_is_that_of_the_settings_and_can_be_read(tmp_path: Path) -> None:
    text = (PROJECT / "packaging" / "leveret.conf.example").read_text()
    assert text == example_file()
    assert load(conf(tmp_path, text)) == Config()
    assert load(conf(tmp_path, re.sub(r"(?m)^#(?! )", "", text))) == Config()
    assert all("#" + line in text for one in SETTINGS for line in lines_of(one))
