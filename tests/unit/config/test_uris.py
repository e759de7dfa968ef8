"""Places of other machines in settings: what names one, what does not, and whose password is shown to nobody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.config.uris import Endpoints, EtcdEndpoint, NodeUri, OptionalNodeUri, parse_node_uri

HOSTS = st.ip_addresses().map(str) | st.sampled_from(
    ["a", "leader.example", "rabbit_1", "xn--bcher-kva.example"]
)
PORTS = st.integers(1, 65535)


@pytest.mark.parametrize(
    ("text", "uri", "shown"),
    [
        ("tcp://localhost:5679", NodeUri("tcp", "localhost", 5679), "tcp://localhost:5679"),
        ("tcp://leader.example", NodeUri("tcp", "leader.example", 5679), "tcp://leader.example:5679"),
        ("tls://10.0.0.1:1", NodeUri("tls", "10.0.0.1", 1), "tls://10.0.0.1:1"),
        ("tls://[fd00::1]", NodeUri("tls", "fd00::1", 5679), "tls://[fd00::1]:5679"),
        ("tcp://[0:0::1]:7", NodeUri("tcp", "::1", 7), "tcp://[::1]:7"),
    ],
)
def test_a_node_is_named_by_scheme_host_and_port(text: str, uri: NodeUri, shown: str) -> None:
    assert OptionalNodeUri().parse(text) == uri
    assert (str(uri), uri.is_tls) == (shown, text.startswith("tls"))


@given(st.sampled_from(["tcp", "tls"]), HOSTS, PORTS)
def test_a_node_that_is_shown_is_read_back(scheme: str, host: str, port: int) -> None:
    uri = NodeUri(scheme, host, port)
    assert parse_node_uri(OptionalNodeUri().show(uri)) == uri


def test_no_node_is_none() -> None:
    assert OptionalNodeUri().parse("none") is None
    assert OptionalNodeUri().show(None) == "none"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:5679",
        "amqp://localhost:5679",
        "TCP://localhost",
        "tcp:localhost",
        "tcp://",
        "tcp://:5679",
        "tcp://localhost:",
        "tcp://localhost:0",
        "tcp://localhost:65536",
        "tcp://localhost:x",
        "tcp://localhost:5679/",
        "tcp://localhost/data",
        "tcp://localhost?x=1",
        "tcp://localhost#x",
        "tcp://me:secret@localhost",
        "tcp://me@localhost",
        "tcp://fd00::1",
        "tcp://[fd00::1",
        "tcp://[10.0.0.1]",
        "tcp://[x]",
        "tcp://10.0.0.256",
        "tcp://10.0.0",
        "tcp://a..b",
        "tcp://-a",
        "tcp://a b",
        "tcp://a\nb",
        "tcp://" + "a" * 64,
        "tcp://" + "a." * 130,
    ],
)
def test_what_names_no_node_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the kinds' errors say nothing, their callers do
        parse_node_uri(text)


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("none", ()),
        ("http://127.0.0.1", (EtcdEndpoint("http://127.0.0.1:2379"),)),
        (
            "http://a:1, https://[fd00::1]:2/",
            (EtcdEndpoint("http://a:1"), EtcdEndpoint("https://[fd00::1]:2")),
        ),
        ("https://root:p%40ss%2C@etcd", (EtcdEndpoint("https://etcd:2379", "root", "p@ss,"),)),
    ],
)
def test_etcd_is_named_by_urls_between_commas(text: str, endpoints: tuple[EtcdEndpoint, ...]) -> None:
    kind = Endpoints()
    assert kind.parse(text) == endpoints
    assert kind.parse(kind.show(endpoints)) == endpoints


@given(
    st.lists(
        st.tuples(HOSTS, PORTS, st.text(min_size=1), st.text()), max_size=3, unique_by=lambda each: each[:2]
    )
)
def test_an_etcd_that_is_shown_is_read_back(members: list[tuple[str, int, str, str]]) -> None:
    endpoints = tuple(
        EtcdEndpoint(str(NodeUri("http", host, port)), username, password)
        for host, port, username, password in members
    )
    assert Endpoints().parse(Endpoints().show(endpoints)) == endpoints


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:2379",
        "tcp://127.0.0.1:2379",
        "http://a,",
        "http://a,http://a:2379",
        "http://a,none",
        "http://a/v3",
        "http://user@a",
        "http://:password@a",
        "http://user:pass:word@a",
        "http://user:p@ss@a",
        "http://a b",
    ],
)
def test_what_names_no_etcd_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the kinds' errors say nothing, their callers do
        Endpoints().parse(text)


def test_a_password_is_in_no_text_of_an_endpoint() -> None:
    (endpoint,) = Endpoints().parse("http://root:s3cret@etcd")
    assert (endpoint.username, endpoint.password) == ("root", "s3cret")
    assert "s3cret" not in f"{endpoint} {endpoint!r}"
