"""TLS contexts from settings: what is wrong is told with its setting, its file and its reason."""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leveret.config.sections.tls import TlsOptions
from leveret.model.errors import ConfigError
from leveret.runtime.sockets import tls
from leveret.runtime.sockets.tls import ListenerTls, client_context
from leveret.testing.servers.certificates import CertificateAuthority, Issued, available
from leveret.wire.tls import limit

pytestmark = [pytest.mark.process, pytest.mark.skipif(available() is not None, reason=str(available()))]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: CertificateAuthority) -> Issued:
    return authority.issue("server", names="DNS:localhost")


@pytest.fixture
def options(server: Issued) -> TlsOptions:
    return TlsOptions(certfile=server.certfile, keyfile=server.keyfile)


def server_context(options: TlsOptions, prefix: str) -> ssl.SSLContext:
    return ListenerTls(options, prefix).context()


def test_versions_and_verification_are_as_set(options: TlsOptions, server: Issued) -> None:
    plain = server_context(options, "ssl_options")
    assert (plain.minimum_version, plain.maximum_version, plain.verify_mode) == (
        ssl.TLSVersion.TLSv1_2,
        ssl.TLSVersion.TLSv1_3,
        ssl.CERT_NONE,
    )
    strict = replace(
        options,
        versions=("tlsv1.3",),
        verify="verify_peer",
        cacertfile=server.cacertfile,
        fail_if_no_peer_cert=True,
    )
    context = server_context(strict, "ssl_options")
    assert (context.minimum_version, context.verify_mode) == (ssl.TLSVersion.TLSv1_3, ssl.CERT_REQUIRED)
    lenient = server_context(replace(strict, fail_if_no_peer_cert=False), "ssl_options")
    assert lenient.verify_mode == ssl.CERT_OPTIONAL


def test_cipher_suites_are_as_set(options: TlsOptions) -> None:
    one = server_context(replace(options, ciphers=("ECDHE-RSA-AES256-GCM-SHA384",)), "ssl_options")
    old = {each["name"] for each in one.get_ciphers() if each["protocol"] != "TLSv1.3"}
    assert old == {"ECDHE-RSA-AES256-GCM-SHA384"}
    loose = replace(options, honor_cipher_order=False, client_renegotiation=True)
    assert not server_context(loose, "ssl_options").options & ssl.OP_CIPHER_SERVER_PREFERENCE
    assert not server_context(loose, "ssl_options").options & ssl.OP_NO_RENEGOTIATION
    assert server_context(options, "ssl_options").options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize("side", [ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT])
def test_without_cipher_suites_all_are_forward_secret_whatever_openssl_takes_itself(side: int) -> None:
    """Distributions build Python with suites of OpenSSL's that are not."""
    context = ssl.SSLContext(side)
    context.set_ciphers("ALL:@SECLEVEL=0")
    assert {each["kea"] for each in context.get_ciphers()} > {"kx-rsa"}
    limit(context, ("tlsv1.2", "tlsv1.3"), (), "ssl_options")
    found = context.get_ciphers()
    assert {each["kea"] for each in found} == {"kx-any", "kx-ecdhe", "kx-dhe"}
    assert {each["protocol"] for each in found if each["kea"] == "kx-any"} == {"TLSv1.3"}
    assert all(each["auth"] != "auth-null" for each in found)


@pytest.mark.parametrize(("suite", "agrees"), [("AES256-GCM-SHA384", False), ("ECDHE+AESGCM", True)])
def test_a_client_that_offers_no_forward_secrecy_is_refused(
    options: TlsOptions, suite: str, agrees: bool
) -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers(f"{suite}:@SECLEVEL=0")
    if agrees:
        shake_hands(server_context(options, "ssl_options"), client)
    else:
        with pytest.raises(ssl.SSLError, match="NO_SHARED_CIPHER"):
            shake_hands(server_context(options, "ssl_options"), client)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """In memory."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = server.wrap_bio(there, back, server_side=True), client.wrap_bio(back, there)
    left = set(ends)
    for end in ends[::-1] * 5:
        if end in left:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
                left.discard(end)
    assert not left


def test_a_key_with_a_password_needs_it(authority: CertificateAuthority) -> None:
    locked = authority.issue("locked", password="secret")
    options = TlsOptions(certfile=locked.certfile, keyfile=locked.keyfile)
    server_context(replace(options, password="secret"), "ssl_options")
    for password in (None, "wrong"):
        with pytest.raises(ConfigError, match=r"ssl_options: certificate .*locked\.pem and key .*password"):
            server_context(replace(options, password=password), "ssl_options")


def test_what_is_missing_or_does_not_fit_is_told(
    options: TlsOptions, authority: CertificateAuthority, tmp_path: Path
) -> None:
    other = authority.issue("other")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    nothing = tmp_path / "nothing.pem"
    peers = replace(options, verify="verify_peer")
    for changed, text in (
        (replace(options, certfile=None), "x.certfile is not set"),
        (replace(options, keyfile=None), "x.keyfile is not set"),
        (replace(options, keyfile=nothing), f"x.keyfile = {nothing} cannot be read: No such file"),
        (replace(options, keyfile=other.keyfile), "the key is not that of the certificate"),
        (replace(options, certfile=garbage), f"certificate {garbage} and key"),
        (replace(options, fail_if_no_peer_cert=True), "needs x.verify = verify_peer"),
        (peers, "x.cacertfile is not set"),
        (replace(peers, cacertfile=garbage), f"x.cacertfile = {garbage} holds no certificates"),
        (replace(options, ciphers=("NO-SUCH-CIPHER",)), "OpenSSL knows none of NO-SUCH-CIPHER"),
        (replace(options, versions=()), "at least one version"),
    ):
        with pytest.raises(ConfigError) as refused:
            server_context(changed, "x")
        assert text in str(refused.value)


def shown_to_a_client(context: ssl.SSLContext, authority: CertificateAuthority) -> str:
    """The common name in the certificate that a client is shown, in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    checking = authority.client_context()
    checking.check_hostname = False
    client = checking.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (client, server):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    certificate = client.getpeercert()
    assert certificate is not None
    subject: Any = certificate["subject"]
    return str(subject[0][0][1])


def renew(options: TlsOptions, issued: Issued) -> None:
    for path, wanted in ((options.certfile, issued.certfile), (options.keyfile, issued.keyfile)):
        assert path is not None
        fresh = path.with_suffix(".fresh")
        fresh.write_bytes(wanted.read_bytes())
        fresh.replace(path)


def test_renewed_files_are_taken_without_a_restart_and_broken_ones_are_not(
    authority: CertificateAuthority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = authority.issue("first"), authority.issue("second")
    options = TlsOptions(certfile=tmp_path / "server.pem", keyfile=tmp_path / "server.key")
    renew(options, first)
    listener = ListenerTls(options, "ssl_options")
    renew(options, second)
    assert shown_to_a_client(listener.context(), authority) == "first", "looked at before its time"
    monkeypatch.setattr(tls, "LOOK_EVERY_S", 0.0)
    assert shown_to_a_client(listener.context(), authority) == "second"
    renew(options, replace(first, keyfile=second.keyfile))
    assert shown_to_a_client(listener.context(), authority) == "second"
    assert "certificates_not_renewed setting=ssl_options" in caplog.text
    renew(options, first)
    assert shown_to_a_client(listener.context(), authority) == "first"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_is_not_resumed_once_the_authority_of_its_certificate_is_gone(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: ssl.TLSVersion
) -> None:
    """A resumed session is not verified again, so its client would stay as long as it comes back."""
    monkeypatch.setattr(tls, "LOOK_EVERY_S", 0.0)
    other = CertificateAuthority(tmp_path)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.cacertfile.read_bytes() + other.cacertfile.read_bytes())
    issued = authority.issue("resumed", names="DNS:localhost")
    listener = ListenerTls(
        TlsOptions(
            certfile=issued.certfile,
            keyfile=issued.keyfile,
            verify="verify_peer",
            cacertfile=trusted,
            fail_if_no_peer_cert=True,
        ),
        "ssl_options",
    )
    stranger = other.issue("stranger")
    client = authority.client_context()
    client.load_cert_chain(stranger.certfile, stranger.keyfile)
    client.minimum_version = client.maximum_version = version
    session = handshake(listener, client, None)
    assert handshake(listener, client, session) is not None, "while it is trusted"
    trusted.write_bytes(authority.cacertfile.read_bytes())
    with pytest.raises(ssl.SSLError, match=r"certificate verify failed"):
        handshake(listener, client, session)


def test_a_listener_that_verifies_gives_no_tickets(options: TlsOptions, server: Issued) -> None:
    """A ticket would outlast its client's certificate, and bring another one whenever it is used."""
    verifying = replace(options, verify="verify_peer", cacertfile=server.cacertfile)
    context = server_context(verifying, "ssl_options")
    assert (context.num_tickets, bool(context.options & ssl.OP_NO_TICKET)) == (0, True)
    assert server_context(options, "ssl_options").num_tickets > 0


def handshake(
    listener: ListenerTls, client: ssl.SSLContext, session: ssl.SSLSession | None
) -> ssl.SSLSession | None:
    """Both ends agree, in memory, and say an octet to each other; the client's session.

    Raises:
        ssl.SSLError: the listener refuses the client.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = listener.context().wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    for _ in range(4):
        for end in (asking, serving):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    serving.write(b"x")
    assert asking.read() == b"x"
    return asking.session


# --- the side that connects ----------------------------------------------------------------------


def met(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after a handshake in memory, server first.

    Raises:
        ssl.SSLError: one refused the other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=host),
    )
    for _ in range(4):
        for end in reversed(ends):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends


def test_a_client_that_verifies_takes_only_the_host_it_wants_of_an_authority_it_knows(
    options: TlsOptions, server: Issued, tmp_path: Path
) -> None:
    serving = server_context(options, "x")
    checks = TlsOptions(verify="verify_peer", cacertfile=server.cacertfile)
    _, client = met(serving, client_context(checks, "x"), "localhost")
    assert client.getpeercert()
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for 'elsewhere'"):
        met(serving, client_context(checks, "x"), "elsewhere")
    stranger = CertificateAuthority(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        met(serving, client_context(replace(checks, cacertfile=stranger.cacertfile), "x"), "localhost")
    _, careless = met(serving, client_context(TlsOptions(), "x"), "elsewhere")
    assert careless.version() == "TLSv1.3"


def test_a_client_shows_its_own_certificate_where_one_is_set(
    options: TlsOptions, server: Issued, authority: CertificateAuthority
) -> None:
    demanding = replace(
        options,
        verify="verify_peer",
        cacertfile=server.cacertfile,
        fail_if_no_peer_cert=True,
        versions=("tlsv1.2",),
    )
    serving = server_context(demanding, "x")
    follower = authority.issue("follower", password="secret")
    own = TlsOptions(certfile=follower.certfile, keyfile=follower.keyfile, password="secret")
    served, _ = met(serving, client_context(own, "x"), "localhost")
    certificate: Any = served.getpeercert()
    assert certificate["subject"][0][0][1] == "follower"
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        met(serving, client_context(TlsOptions(), "x"), "localhost")


def test_a_client_speaks_the_versions_and_suites_that_are_set(options: TlsOptions) -> None:
    old = TlsOptions(versions=("tlsv1.2",), ciphers=("ECDHE-ECDSA-AES256-GCM-SHA384",))
    _, client = met(server_context(options, "x"), client_context(old, "x"), "localhost")
    suite = client.cipher()
    assert suite is not None
    assert (client.version(), suite[0]) == ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384")
    with pytest.raises(ssl.SSLError):
        met(
            server_context(replace(options, versions=("tlsv1.3",)), "x"),
            client_context(old, "x"),
            "localhost",
        )


def test_what_a_client_lacks_is_told(options: TlsOptions, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    for changed, text in (
        (TlsOptions(verify="verify_peer"), "x.cacertfile is not set"),
        (
            TlsOptions(verify="verify_peer", cacertfile=garbage),
            f"x.cacertfile = {garbage} holds no certificates",
        ),
        (replace(options, keyfile=None), "x.keyfile is not set"),
        (TlsOptions(versions=()), "at least one version"),
    ):
        with pytest.raises(ConfigError) as refused:
            client_context(changed, "x")
        assert text in str(refused.value)
