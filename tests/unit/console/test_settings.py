from __future__ import annotations

from pathlib import Path

import pytest

from leveret.console.settings import ConsoleSettings, read_settings
from leveret.model.errors import ConfigError

EU = ["eu=http://127.0.0.1:15672"]


def test_options_are_enough_and_the_port_is_its_own() -> None:
    settings = read_settings(None, [*EU, "us=https://us1.example:15671/x/, https://us2.example"], {})
    assert [(site.name, site.urls) for site in settings.sites] == [
        ("eu", ("http://127.0.0.1:15672",)),
        ("us", ("https://us1.example:15671/x", "https://us2.example")),
    ]
    assert (settings.host, settings.port, settings.has_tls) == ("127.0.0.1", 15680, False)


def test_options_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "console.toml"
    file.write_text(
        'listen = "127.0.0.1:1"\nnames = ["console.example"]\n[sites]\neu = "http://127.0.0.1:2"\n'
        '[sites.us]\nurl = "https://us.example"\ncacertfile = "/ca.pem"\n'
    )
    settings = read_settings(file, EU, {"listen": "127.0.0.1:3", "certfile": None, "names": None})
    assert (settings.port, settings.names) == (3, ("console.example",))
    assert [site.urls for site in settings.sites] == [("http://127.0.0.1:15672",), ("https://us.example",)]
    assert settings.sites[1].cacertfile == Path("/ca.pem")
    assert read_settings(file, EU, {"names": ["mq1.example"]}).names == ("mq1.example",)


@pytest.mark.parametrize(
    ("sites", "options", "text"),
    [
        ([], {}, "--site NAME=URL"),
        (["eu"], {}, "NAME=URL"),
        (["e u=http://127.0.0.1:1"], {}, "no name of a site"),
        (["eu=ftp://127.0.0.1"], {}, "no URL"),
        (["eu=http://guest:guest@127.0.0.1:1"], {}, "does not belong into a URL"),
        (["eu=http://eu.example:15672"], {}, "use https"),
        (["eu=http://127.0.0.1:1,"], {}, "no URL"),
        (["eu=http://127.0.0.1:1,http://eu.example"], {}, "use https"),
        (EU, {"listen": "0.0.0.0:15680"}, "set certfile and keyfile"),
        (EU, {"listen": "[::]:15680"}, "set certfile and keyfile"),
        (EU, {"listen": "somewhere"}, "no IP address and port"),
        (EU, {"listen": "127.0.0.1:65536"}, "'127.0.0.1:65536' is no IP address and port"),
        (EU, {"listen": "127.0.0.1:" + "9" * 5_000}, "is no IP address and port"),
        (EU, {"certfile": "/a.pem"}, "needs both"),
    ],
)
def test_what_is_wrong_is_named_and_no_password_is_shown(
    sites: list[str], options: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        read_settings(None, sites, options)
    assert "guest:guest" not in str(caught.value)


@pytest.mark.parametrize("text", ["[sites", "sites = 3", 'passwort = "x"', "[sites.eu]\nuser = 'x'"])
def test_a_file_that_is_wrong_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "console.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=str(file)):
        read_settings(file, EU, {})


def test_beyond_loopback_tls_is_enough(tmp_path: Path) -> None:
    options = {"listen": "0.0.0.0:15680", "certfile": "/a.pem", "keyfile": "/a.key"}
    assert isinstance(read_settings(None, EU, options), ConsoleSettings)
