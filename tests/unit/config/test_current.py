from __future__ import annotations

from pathlib import Path

import pytest

from leveret.config import build, gather, load, render
from leveret.config.current import settings_in_force
from leveret.config.syntax import SettingText
from leveret.model.errors import ConfigError


def test_every_setting_is_shown_as_a_line_that_the_file_takes(tmp_path: Path) -> None:
    given = {
        "listeners.tcp.1": "127.0.0.1:1",
        "listeners.tcp.2": "127.0.0.1:2",
        "loopback_users": "none",
        "heartbeat": "7",
        "vm_memory_high_watermark.relative": "0.5",
    }
    config = build(gather(overrides=given))
    shown = dict(settings_in_force(config))
    assert {key: shown[key] for key in given} == given
    file = tmp_path / "leveret.conf"
    file.write_text("".join(f"{key} = {value}\n" for key, value in shown.items()))
    assert load(file) == config


def test_secrets_among_settings_of_spark_are_neither_shown_nor_taken_in_sight() -> None:
    hidden = "spark.conf.spark.hadoop.fs.s3a.secret.key"
    texts = {hidden: "hunter2", "spark.conf.spark.sql.shuffle.partitions": "4"}
    given = gather(flags={key: SettingText(text, "a file") for key, text in texts.items()})
    shown = [key for key, _ in settings_in_force(build(given)) if key.startswith("spark.conf")]
    assert shown == ["spark.conf.spark.sql.shuffle.partitions"]
    assert "hunter2" not in render(given)
    with pytest.raises(ConfigError, match=f"{hidden} is a secret"):
        gather(overrides=texts)


@pytest.mark.parametrize("file", ["leveret.conf", "lavinmq.ini"])
def test_a_secret_behind_a_key_without_its_sign_is_not_shown(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text(
        "[main]\ndefault_pass hunter2\n" if file.endswith("ini") else "default_pass hunter2\n"
    )
    with pytest.raises(ConfigError, match="'default_pass' is not a setting") as raised:
        load(tmp_path / file)
    assert "hunter2" not in str(raised.value)


def test_secrets_are_left_out() -> None:
    shown = dict(settings_in_force(load(None, {"default_user": "somebody"})))
    assert shown["default_user"] == "somebody"
    assert "default_pass" not in shown
