"""TLS settings: the same for every door, under each door's prefix."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.config import SETTINGS, load, render
from leveret.config.sources import gather
from leveret.model.errors import ConfigError


def conf(folder: Path, text: str) -> Path:
    path = folder / "leveret.conf"
    path.write_text(text)
    return path


def test_every_door_has_settings_of_its_own(tmp_path: Path) -> None:
    text = "ssl_options.certfile = /a.pem\nmanagement.ssl.certfile = /b.pem\nmanagement.ssl.versions.1 = tlsv1.3\n"
    config = load(conf(tmp_path, text))
    assert (config.tls.certfile, config.management.tls.certfile) == (Path("/a.pem"), Path("/b.pem"))
    assert (config.tls.versions, config.management.tls.versions) == (("tlsv1.3", "tlsv1.2"), ("tlsv1.3",))


def test_an_error_names_the_door_s_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ssl_options\.verify = 'yes' is not valid"):
        load(conf(tmp_path, "ssl_options.verify = yes\n"))
    with pytest.raises(ConfigError, match=r"ssl_options\.versions\.1 = 'tlsv1\.1' is not valid"):
        load(conf(tmp_path, "ssl_options.versions.1 = tlsv1.1\n"))


def test_the_password_of_a_key_is_never_shown(tmp_path: Path) -> None:
    path = conf(tmp_path, "ssl_options.password = hidden\n")
    assert "hidden" not in render(gather(path))
    assert "hidden" not in repr(load(path))
    assert {one.key for one in SETTINGS if one.is_secret} >= {
        "ssl_options.password",
        "management.ssl.password",
    }
