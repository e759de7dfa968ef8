"""The suites in other languages: what they need, where they are from, and how they are run beside a broker."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.suites.brokers import Certificates
from tests.suites.languages.outcomes import of_go, of_junit, of_tap
from tests.suites.languages.sources import Bring, call, debian_source, installed, npm
from tests.suites.run import Results

_INSIDE: Final = Path(__file__).parent / "inside"
_PROGRAMS: Final = Path(__file__).parent / "programs"
"""Applications of our own, for clients whose packages have no tests that ask a broker."""
_GOPATH: Final = "/usr/share/gocode"
_JARS: Final = Path("/usr/share/java")
_URL: Final = "amqp://guest:guest@127.0.0.1:5672/"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a suite runs.

    Attributes:
        folder: the suite's.
        room: the folder of this run.
        ctl: a program that operates the broker.
        certificates: of the broker.
        urls: where the broker's nodes are, with spaces between them.
    """

    folder: Path
    room: Path
    ctl: Path
    certificates: Certificates
    urls: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One program of a suite.

    Attributes:
        argv: the program.
        name: of the step, before the names of its tests; the test itself if the program is one.
        read: reads the results of what it wrote; None for a program that is one test, by its exit status.
        output: the file that it writes results to; None for its standard output.
        merged: whether its standard error is a part of the output.
        cwd: the working directory, the suite's folder by default.
        env: variables to set.
        timeout_s: the longest that it may take.
    """

    argv: Sequence[str | Path]
    name: str = ""
    read: Callable[[str], Results] | None = None
    output: Path | None = None
    merged: bool = False
    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSuite:
    """One suite in another language than Python.

    Attributes:
        version: of the client.
        needs: programs and files, each with the Debian packages that bring it.
        bring: brings the suite.
        steps: the programs to run, in order.
        operated: commands for the broker before the first step.
        left_out: tests that are not compared, each with the reason.
        in_cluster: whether the broker is a cluster of three nodes, on free ports.
    """

    name: str
    version: str
    needs: Mapping[str, str]
    bring: Bring
    steps: Callable[[Place], Sequence[Step]]
    operated: Sequence[Sequence[str]] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    in_cluster: bool = False
    timeout_s: float = 1200.0

    @property
    def folder(self) -> str:
        """The name of the suite's folders."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    def lacking(self) -> str:
        """What this machine lacks for the suite, with the packages that bring it; empty if nothing."""
        missing = [
            f"{need} (package {package})"
            for need, package in self.needs.items()
            if not (Path(need).exists() if need.startswith("/") else shutil.which(need))
        ]
        return f"this machine lacks {', '.join(missing)}" if missing else ""


NODE: Final = {"node": "nodejs", "npm": "npm"}
_GO: Final = {
    "go": "golang-go",
    f"{_GOPATH}/src/github.com/rabbitmq/amqp091-go": "golang-github-rabbitmq-amqp091-go-dev",
}
_ERLANG: Final = Path("/usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/plugins/amqp_client-3.10.8")


def _amqplib(place: Place) -> list[Step]:
    results = place.room / "junit.xml"
    reporter = ["--test-reporter=junit", f"--test-reporter-destination={results}"]
    # One file at a time, as they share names of queues, and more than the second that the package gives each test.
    bounds = ["--test-concurrency=1", "--test-timeout=30000"]
    tests = sorted(test.relative_to(place.folder) for test in place.folder.glob("test/*.test.js"))
    return [
        Step(
            argv=["node", "--test", *bounds, *reporter, *tests],
            read=of_junit,
            output=results,
            env={"URL": "amqp://guest:guest@127.0.0.1:5672"},
        )
    ]


def _go(package: str) -> Callable[[Place], list[Step]]:
    def steps(place: Place) -> list[Step]:
        cache = place.room.parent.parent / "go-cache"
        env = {
            "GO111MODULE": "off",
            "GOPATH": _GOPATH,
            "GOCACHE": str(cache),
            "GOFLAGS": "",
            "AMQP_URL": _URL,
        }
        argv = ["go", "test", "-tags", "integration", "-count=1", "-v", "-json", package]
        return [Step(argv=argv, read=of_go, env=env, cwd=place.room)]

    return steps


def _build_java(folder: Path) -> None:
    """Compile the tests that ask a broker and need nothing beyond Debian's packages, and the program that runs them."""
    tests = folder / "src" / "test" / "java"
    suites = [each for name in ("FunctionalTests", "ServerTests") for each in tests.rglob(f"{name}.java")]
    listed = [
        name
        for suite in suites
        for name in re.findall(r"^\s+(\w+)\.class,?$", suite.read_text(), re.MULTILINE)
    ]
    sources = [source for name in listed for source in tests.rglob(f"test/*/{name}.java")]
    wanted = [source for source in sources if "org.awaitility" not in source.read_text()]
    for source in sources:
        if source not in wanted:  # others name its class
            source.write_text(
                f"package com.rabbitmq.client.test.{source.parent.name};\n\nclass {source.stem} {{}}\n"
            )
    (folder / "tests.txt").write_text(
        "".join(f"{'.'.join(source.relative_to(tests).with_suffix('').parts)}\n" for source in wanted)
    )
    (folder / "classes").mkdir()
    to = ("-cp", _class_path(folder), "-sourcepath", tests, "-d", folder / "classes")
    call(["javac", "-nowarn", *to, *wanted, _INSIDE / "SuiteLines.java"], folder)


def _class_path(folder: Path) -> str:
    jars = ("amqp-client", "junit4", "hamcrest", "slf4j-api", "slf4j-nop")
    return ":".join(map(str, (folder / "classes", *(_JARS / f"{jar}.jar" for jar in jars))))


def _java(place: Place) -> list[Step]:
    settings = {"make.bin": place.ctl, "rabbitmqctl.bin": place.ctl, "rabbitmq.dir": place.folder}
    settings |= {"test-broker.A.nodename": Path("A"), "test-broker.A.node_port": Path("5672")}
    program = [
        "java",
        *(f"-D{key}={value}" for key, value in settings.items()),
        "-cp",
        _class_path(place.folder),
    ]
    output = place.room / "tests.tap"
    wanted = (place.folder / "tests.txt").read_text().split()
    return [Step(argv=[*program, "SuiteLines", output, *wanted], read=of_tap, output=output, timeout_s=1100)]


def _build_c(folder: Path) -> None:
    call(
        [
            "cc",
            "-o",
            "test_basic",
            "tests/test_basic.c",
            "librabbitmq/amqp_time.c",
            "-Ilibrabbitmq",
            "-lrabbitmq",
        ],
        folder,
    )


def _perl(place: Place) -> list[Step]:
    return [
        Step(argv=["perl", test], name=f"{test.name}: ", read=of_tap, merged=True, timeout_s=120)
        for test in sorted(place.folder.glob("xt/0[4-9]*.t"))
    ]


def _javascript_applications(*programs: str) -> Callable[[Place], list[Step]]:
    def steps(place: Place) -> list[Step]:
        env = {"CTL": str(place.ctl), "URLS": place.urls}
        return [
            Step(argv=["node", program], name=f"{program}: ", read=of_tap, env=env) for program in programs
        ]

    return steps


def _application(*argv: str | Path, **variables: str) -> Callable[[Place], list[Step]]:
    """One program of ours that writes lines of the Test Anything Protocol."""

    def steps(place: Place) -> list[Step]:
        env = {"CTL": str(place.ctl), "URLS": place.urls, **variables}
        return [Step(argv=argv, read=of_tap, env=env, cwd=place.room, timeout_s=300)]

    return steps


SUITES: Final[tuple[ForeignSuite, ...]] = (
    ForeignSuite(
        name="amqplib (JavaScript)",
        version="1.2.0",
        needs=NODE,
        bring=npm("amqplib", "amqplib"),
        steps=_amqplib,
    ),
    ForeignSuite(
        name="amqp091-go (Go)",
        version="1.5.0",
        needs=_GO,
        bring=installed(f"{_GOPATH}/src/github.com/rabbitmq/amqp091-go"),
        steps=_go("github.com/rabbitmq/amqp091-go"),
    ),
    ForeignSuite(
        name="amqp-client (Java)",
        version="5.0.0",
        needs={
            "javac": "default-jdk-headless",
            str(_JARS / "amqp-client.jar"): "librabbitmq-client-java",
            str(_JARS / "junit4.jar"): "junit4",
        },
        bring=debian_source(
            "rabbitmq-java-client",
            "23c185a4b241c60223e8a800472d674f3d8e8fc5688bf99abe6ccdfd55e64aeb",
            _build_java,
        ),
        steps=_java,
    ),
    ForeignSuite(
        name="librabbitmq (C)",
        version="0.11.0",
        needs={"cc": "gcc", "/usr/include/amqp.h": "librabbitmq-dev"},
        bring=debian_source(
            "librabbitmq", "437d45e0e35c18cf3e59bcfe5dfe37566547eb121e69fca64b98f5d2c1c2d424", _build_c
        ),
        steps=lambda place: [Step(argv=[place.folder / "test_basic"], name="test_basic", merged=True)],
    ),
    ForeignSuite(
        name="AnyEvent-RabbitMQ (Perl)",
        version="1.22",
        needs={
            "perl": "perl",
            "/usr/share/perl5/AnyEvent/RabbitMQ.pm": "libanyevent-rabbitmq-perl",
            "/usr/share/perl5/Test/Exception.pm": "libtest-exception-perl",
        },
        bring=debian_source(
            "libanyevent-rabbitmq-perl", "bd35753e1f0e51e5416a6b655df9be3a80ef03f1b3b568ec9f1c2d19e9fdf12d"
        ),
        steps=_perl,
    ),
    ForeignSuite(
        name="applications (JavaScript)",
        version="amqplib 2.3.1, amqp-connection-manager 5.0.0, rabbitmq-client 5.0.8, @cloudamqp/amqp-client 4.1.1",
        needs=NODE,
        bring=npm("applications", _PROGRAMS / "javascript"),
        steps=_javascript_applications(
            "amqplib.js", "cloudamqp.mjs", "connection-manager.js", "rabbitmq-client.js"
        ),
    ),
    ForeignSuite(
        name="fail-over (JavaScript)",
        version="amqp-connection-manager 5.0.0, rabbitmq-client 5.0.8",
        needs=NODE,
        bring=npm("applications", _PROGRAMS / "javascript"),
        steps=_javascript_applications("failover.js"),
        in_cluster=True,
    ),
    ForeignSuite(
        name="application (Go)",
        version="amqp091-go 1.5.0",
        needs=_GO,
        bring=installed(str(_PROGRAMS / "go")),
        steps=_application(
            "go", "run", _PROGRAMS / "go" / "main.go", GO111MODULE="off", GOPATH=_GOPATH, GOFLAGS=""
        ),
    ),
    ForeignSuite(
        name="application (Java)",
        version="amqp-client 5.0.0",
        needs={"javac": "default-jdk-headless", str(_JARS / "amqp-client.jar"): "librabbitmq-client-java"},
        bring=installed(str(_PROGRAMS / "java")),
        steps=_application("java", "-cp", _class_path(Path("/")), _PROGRAMS / "java" / "Application.java"),
    ),
    ForeignSuite(
        name="application (Ruby)",
        version="bunny 2.19.0",
        needs={
            "ruby": "ruby",
            "/usr/share/rubygems-integration/all/specifications/bunny-2.19.0.gemspec": "ruby-bunny",
        },
        bring=installed(str(_PROGRAMS / "ruby")),
        steps=_application("ruby", _PROGRAMS / "ruby" / "application.rb"),
    ),
    ForeignSuite(
        name="application (PHP)",
        version="php-amqplib 3.5.3",
        needs={"php": "php-cli", "/usr/share/php/PhpAmqpLib/autoload.php": "php-amqplib"},
        bring=installed(str(_PROGRAMS / "php")),
        steps=_application("php", _PROGRAMS / "php" / "application.php"),
    ),
    ForeignSuite(
        name="application (Erlang)",
        version="amqp_client 3.10.8",
        needs={"escript": "erlang-base", str(_ERLANG): "rabbitmq-server"},
        bring=installed(str(_PROGRAMS / "erlang")),
        steps=_application(
            "escript", _PROGRAMS / "erlang" / "application.escript", ERL_LIBS=str(_ERLANG.parent)
        ),
    ),
    ForeignSuite(
        name="amqp-tools (C)",
        version="0.11.0",
        needs={"amqp-publish": "amqp-tools"},
        bring=installed(str(_PROGRAMS / "c")),
        steps=_application("sh", _PROGRAMS / "c" / "tools.sh"),
    ),
)
FOREIGN: Final = {suite.name: suite for suite in SUITES}
