"""Who is trusted to be etcd."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.config.etcd import EtcdOptions
from leveret.model.errors import ConfigError
from leveret.runtime.etcd import etcd_context


def test_without_a_setting_the_system_says_whom_to_trust() -> None:
    assert etcd_context(EtcdOptions()) is None


def test_authorities_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^cluster.etcd.ssl_options.cacertfile = \S+none.pem cannot be read"
    ):
        etcd_context(EtcdOptions(cacertfile=tmp_path / "none.pem"))
