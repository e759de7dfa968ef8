from __future__ import annotations

from pathlib import Path

from leveret.config import load
from leveret.management.views.certificates import expiring_before
from leveret.management.views.listeners import listeners_of


def test_stream_clients_with_tls_have_a_listener_whose_certificate_ends(tmp_path: Path) -> None:
    settings = {
        "stream.listeners.ssl.1": "127.0.0.1:5551",
        "ssl_options.certfile": str(tmp_path / "gone.pem"),
    }
    config = load(None, settings)
    assert ("stream/ssl", "127.0.0.1", 5551) in listeners_of(config)
    assert [(row["protocol"], row["port"]) for row in expiring_before(config, 1)] == [("stream/ssl", 5551)]
