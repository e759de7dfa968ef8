from __future__ import annotations

from pathlib import Path

from leveret.config import build, gather, load
from leveret.config.current import settings_in_force


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


def test_secrets_are_left_out() -> None:
    shown = dict(settings_in_force(load(None, {"default_user": "somebody"})))
    assert shown["default_user"] == "somebody"
    assert "default_pass" not in shown
