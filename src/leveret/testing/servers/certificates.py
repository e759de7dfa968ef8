"""Certificates for tests; the `openssl` command makes them, and they are valid for two days.

authority = CertificateAuthority(directory)
server = authority.issue("server", names="DNS:localhost,IP:127.0.0.1")
client = authority.issue("client", subject="/O=Example/CN=app")
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TIMEOUT_S: Final = 30.0
_DAYS: Final = "2"
_ISSUE: Final = (
    "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", _DAYS,
)  # fmt: skip


def available() -> str | None:
    """Return None if certificates can be made here, else the remedy."""
    return None if shutil.which("openssl") else "no openssl on the path: install the package openssl"


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate, its private key and its authority's certificate, as PEM files."""

    certfile: Path
    keyfile: Path
    cacertfile: Path

    def settings(self) -> dict[str, str]:
        """Return the settings of a broker with this certificate, which trusts clients of the same authority."""
        return {
            "ssl_options.cacertfile": str(self.cacertfile),
            "ssl_options.certfile": str(self.certfile),
            "ssl_options.keyfile": str(self.keyfile),
        }

    def client_context(self) -> ssl.SSLContext:
        """Return a context for a client with this certificate, which trusts servers of the same authority."""
        context = ssl.create_default_context(cafile=self.cacertfile)
        context.load_cert_chain(self.certfile, self.keyfile)
        return context


class CertificateAuthority:
    """Signs certificates; its files are in a directory of the caller."""

    def __init__(self, directory: Path) -> None:
        """Make the authority's own certificate."""
        self._directory = directory
        self.cacertfile, self._key = directory / "authority.pem", directory / "authority.key"
        extensions = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n"
        self._make("authority", "/CN=Test authority", extensions, "-nodes")

    def issue(
        self, name: str, *, subject: str | None = None, names: str = "", password: str | None = None
    ) -> Issued:
        """Sign a certificate for `subject` (`/CN=name` by default).

        Args:
            name: the files' name without its ending.
            subject: parts such as `/O=Example/CN=app`.
            names: subject alternative names such as `DNS:localhost,IP:127.0.0.1`.
            password: encrypts the private key.
        """
        extensions = "basicConstraints=critical,CA:FALSE\n" + (f"subjectAltName={names}\n" if names else "")
        secret = ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
        signing = ["-CA", str(self.cacertfile), "-CAkey", str(self._key)]
        self._make(name, subject or f"/CN={name}", extensions, *secret, *signing)
        return Issued(self._directory / f"{name}.pem", self._directory / f"{name}.key", self.cacertfile)

    def client_context(self) -> ssl.SSLContext:
        """Return a context for a client without a certificate, which trusts servers of this authority."""
        return ssl.create_default_context(cafile=self.cacertfile)

    def _make(self, name: str, subject: str, extensions: str, *arguments: str) -> None:
        settings = self._directory / f"{name}.cnf"
        settings.write_text(f"[req]\ndistinguished_name=dn\nx509_extensions=ext\n[dn]\n[ext]\n{extensions}")
        files = [
            "-keyout",
            str(self._directory / f"{name}.key"),
            "-out",
            str(self._directory / f"{name}.pem"),
        ]
        argv = ["openssl", *_ISSUE, "-config", str(settings), "-utf8", "-subj", subject, *files, *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"openssl made no certificate for {name}: {done.stderr}")
