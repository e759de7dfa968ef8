"""What a TLS client's certificate says of its user, as RabbitMQ reads it."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.config.sections.tls import CertificateLogin
from leveret.session.certificate import TlsPeer

SUBJECT = (
    (("countryName", "DE"),),
    (("organizationName", "Ex, ample"),),
    (("commonName", "app"),),
    (("emailAddress", "a@b.c"),),
)
SHOWN = r"EMAILADDRESS=a@b.c,CN=app,O=Ex\, ample,C=DE"
"""As RabbitMQ 3.10.8 shows this subject."""


def peer(subject: Any = SUBJECT, names: Any = (), *, shows: bool = True) -> TlsPeer:
    certificate = {
        "subject": subject,
        "issuer": ((("commonName", "Test authority"),),),
        "notBefore": "Nov 21 08:50:37 2026 GMT",
        "notAfter": "Dec  1 08:50:37 2026 GMT",
        "subjectAltName": names,
    }
    return TlsPeer(
        protocol="tlsv1.3",
        key_exchange="any",
        cipher="aes_256_gcm",
        hash="aead",
        certificate=certificate if shows else None,
    )


def test_a_certificate_is_shown_as_rabbitmq_shows_it() -> None:
    shown = peer()
    assert (shown.subject, shown.issuer) == (SHOWN, "CN=Test authority")
    assert shown.validity == "2026-11-21T08:50:37Z - 2026-12-01T08:50:37Z"


def test_a_peer_without_a_certificate_is_nobody() -> None:
    nobody = peer(shows=False)
    assert (nobody.subject, nobody.issuer, nobody.validity) == ("", "", "")
    assert nobody.login_name(CertificateLogin()) is None


@pytest.mark.parametrize(
    ("value", "escaped"),
    [
        (" x ", r"\ x\ "),
        ("#x", r"\#x"),
        ("x#y z", "x#y z"),
        ('a"b+c,d;e<f>g\\h', r"a\"b\+c\,d\;e\<f\>g\\h"),
        ("ü\n", r"\C3\BC\0A"),
        (" ", r"\ "),
        ("", ""),
    ],
)
def test_special_letters_are_escaped(value: str, escaped: str) -> None:
    assert peer(((("commonName", value),),)).subject == f"CN={escaped}"


def test_parts_of_several_names_and_unknown_types_are_kept() -> None:
    subject = ((("userId", "u"), ("commonName", "c")), (("1.2.3", "v"),))
    assert peer(subject).subject == "1.2.3=v,UID=u+CN=c"


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (CertificateLogin(), SHOWN),
        (CertificateLogin(source="common_name"), "app"),
        (CertificateLogin(source="subject_alternative_name"), "one.example"),
        (CertificateLogin(source="subject_alt_name", san_index=1), "two.example"),
        (CertificateLogin(source="subject_alternative_name", san_index=2), None),
        (CertificateLogin(source="subject_alternative_name", san_type="email"), "x@y.z"),
        (CertificateLogin(source="subject_alternative_name", san_type="uri"), None),
    ],
)
def test_a_setting_says_what_names_the_user(rule: CertificateLogin, name: str | None) -> None:
    names = (("DNS", "one.example"), ("email", "x@y.z"), ("DNS", "two.example"))
    assert peer(names=names).login_name(rule) == name


def test_several_common_names_are_joined_and_none_is_nobody() -> None:
    rule = CertificateLogin(source="common_name")
    assert peer(((("commonName", "a"),), (("commonName", "b"),))).login_name(rule) == "a,b"
    assert peer(((("organizationName", "o"),),)).login_name(rule) is None
