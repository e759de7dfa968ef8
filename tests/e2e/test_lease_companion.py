"""A lease ends with its holder's process, and for no other reason: the companion against a real etcd."""

from __future__ import annotations

import base64
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from leveret.config.sections.etcd import EtcdOptions
from leveret.config.uris import Endpoints
from leveret.runtime.coordination import companion_process
from leveret.runtime.coordination.companion import STARTS_MAX, LeaseCompanion
from leveret.testing.network.ports import LOOPBACK, free_port, wait_until
from leveret.testing.servers import certificates, etcd
from leveret.testing.servers.certificates import CertificateAuthority
from leveret.testing.servers.etcd import EtcdCluster, EtcdMember

PATIENCE_S: Final = 20.0
LONG_S: Final = 120
"""No test waits for the end of such a lease: the lease ends because somebody ends it."""
SHORT_S: Final = 2
PASSWORD: Final = "s:cr%t"
SECRET: Final = "s%3Acr%25t"

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(etcd.available() is not None, reason=str(etcd.available())),
    pytest.mark.xdist_group("etcd"),
]


class Holder:
    """A process with a lease that a key is bound to, and with a companion."""

    def __init__(
        self,
        member: EtcdMember,
        ttl_s: int = LONG_S,
        *,
        endpoints: str = "",
        cacertfile: Path | None = None,
        token: str = "",
    ) -> None:
        self._member, self._headers = member, {"Authorization": token} if token else {}
        self._verify: Any = certificates_of(cacertfile)
        self.lease_id = int(self._ask("lease/grant", TTL=ttl_s)["ID"])
        self.key = base64.b64encode(f"held-{self.lease_id}".encode()).decode()
        self._ask("kv/put", key=self.key, value="eA==", lease=self.lease_id)
        arguments = [str(self.lease_id), str(ttl_s), str(cacertfile or "none")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.companion_holder", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.companion = self.look(endpoints or member.url)

    def _ask(self, path: str, **body: Any) -> dict[str, Any]:
        with httpx.Client(verify=self._verify, trust_env=False, timeout=PATIENCE_S) as client:
            answer = client.post(f"{self._member.url}/v3/{path}", json=body, headers=self._headers)
            found: dict[str, Any] = answer.raise_for_status().json()
            return found

    def look(self, line: str = "") -> int:
        """Have it look after its companion; the companion's process id."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    @property
    def has_lease(self) -> bool:
        return "kvs" in self._ask("kv/range", key=self.key)

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def kill_companion(self) -> None:
        """Kill it, and have the process notice."""
        before = self.companion
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.look() != before, "a look at a companion that has ended", PATIENCE_S)
        self.companion = self.look()

    def wait_given_back(self) -> None:
        wait_until(lambda: not self.has_lease, "the end of the lease", PATIENCE_S)

    def wait_companion_ended(self) -> None:
        wait_until(lambda: not runs(self.companion), "the end of the companion", PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()
        # One that hangs is not left behind.
        if runs(self.companion):
            os.kill(self.companion, signal.SIGKILL)


def certificates_of(cacertfile: Path | None) -> Any:
    return False if cacertfile is None else ssl.create_default_context(cafile=cacertfile)


def ignores(pid: int, number: int) -> bool:
    """Whether a signal does nothing to a process: the program of a companion runs then."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [mask] = [int(line.split()[1], 16) for line in lines if line.startswith("SigIgn")]
    return bool(mask & 1 << number - 1)


def runs(pid: int) -> bool:
    """Whether this is a companion that runs."""
    if not pid:
        return False
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"companion_process" in line


@pytest.fixture(scope="module")
def member() -> Iterator[EtcdMember]:
    with EtcdCluster(heartbeat_ms=20) as cluster:
        yield cluster.members[0]


@pytest.fixture
def holder(member: EtcdMember) -> Iterator[Holder]:
    one = Holder(member)
    yield one
    one.close()


def test_a_lease_ends_with_the_process_that_has_it(holder: Holder) -> None:
    holder.kill9()
    holder.wait_given_back()
    holder.wait_companion_ended()


def test_a_process_that_hangs_keeps_its_lease(holder: Holder) -> None:
    holder.process.send_signal(signal.SIGSTOP)
    # Signals that a service manager sends to all processes of a service do not end the companion either.
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    # All of them: who runs the tests may ignore one, and so do all processes from their start then.
    wait_until(
        lambda: all(ignores(holder.companion, each) for each in numbers),
        "the companion's program",
        PATIENCE_S,
    )
    for number in numbers:
        os.kill(holder.companion, number)
    time.sleep(0.5)
    assert (holder.has_lease, runs(holder.companion)) == (True, True)
    holder.kill9()
    holder.wait_given_back()


def test_a_companion_that_was_killed_is_started_again_a_few_times(holder: Holder) -> None:
    for _ in range(STARTS_MAX - 1):
        holder.kill_companion()
    assert holder.companion != 0
    assert holder.has_lease
    holder.kill9()
    holder.wait_given_back()


def test_after_too_many_ends_there_is_no_companion_and_the_lease_ends_by_itself(member: EtcdMember) -> None:
    holder = Holder(member, SHORT_S)
    try:
        for _ in range(STARTS_MAX):
            holder.kill_companion()
        assert (holder.companion, holder.look()) == (0, 0)
        holder.kill9()
        holder.wait_given_back()
    finally:
        holder.close()


def test_a_companion_that_hangs_gives_the_lease_back_late_and_harms_nobody(holder: Holder) -> None:
    os.kill(holder.companion, signal.SIGSTOP)
    holder.kill9()
    time.sleep(0.3)
    assert holder.has_lease
    os.kill(holder.companion, signal.SIGCONT)
    holder.wait_given_back()
    holder.wait_companion_ended()


def test_two_companions_of_one_lease_are_as_good_as_one(holder: Holder, member: EtcdMember) -> None:
    options = EtcdOptions(endpoints=Endpoints().parse(member.url))
    second = LeaseCompanion(options, holder.lease_id, LONG_S)
    try:
        second.ensure_started()
        second.ensure_started()
        pid = second.pid
        wait_until(lambda: runs(pid), "the second companion", PATIENCE_S)
    finally:
        second.release()
    assert (runs(pid), second.pid, holder.has_lease) == (False, 0, True)
    holder.kill9()
    holder.wait_given_back()


def test_without_its_process_and_without_etcd_a_companion_ends_with_the_lease(member: EtcdMember) -> None:
    holder = Holder(member, SHORT_S, endpoints=f"http://{LOOPBACK}:{free_port()}")
    try:
        holder.kill9()
        assert runs(holder.companion)
        holder.wait_companion_ended()
    finally:
        holder.close()


def test_a_companion_whose_pipe_is_closed_ends_and_leaves_the_lease_to_the_process_that_lives(
    holder: Holder,
) -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        brief = (
            f"endpoint http {LOOPBACK.encode().hex()} {holder._member.port}  -\nlease {holder.lease_id} 0.2\n"
        )
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-E", companion_process.__file__, str(pidfd)],
            input=brief.encode(),
            pass_fds=(pidfd,),
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        os.close(pidfd)
    assert (ended.returncode, holder.has_lease) == (0, True)


def test_one_member_that_hangs_keeps_no_other_from_ending_the_lease(member: EtcdMember) -> None:
    with EtcdCluster(heartbeat_ms=20) as other:
        hanging = other.members[0]
        holder = Holder(member, endpoints=f"{hanging.url},{member.url}")
        try:
            hanging.pause()
            holder.kill9()
            holder.wait_given_back()
        finally:
            hanging.go_on()
            holder.close()


@pytest.mark.skipif(certificates.available() is not None, reason=str(certificates.available()))
def test_the_companion_proves_who_it_is_over_tls_and_shows_no_secret(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    with EtcdCluster(tls=authority.issue("etcd", names=f"IP:{LOOPBACK}"), heartbeat_ms=20) as cluster:
        [one] = cluster.members
        one.ask("auth/user/add", name="root", password=PASSWORD)
        one.ask("auth/user/grant", user="root", role="root")
        one.ask("auth/enable")
        token = str(one.ask("auth/authenticate", name="root", password=PASSWORD)["token"])
        endpoints = f"https://root:{SECRET}@{LOOPBACK}:{one.port}"
        holder = Holder(one, endpoints=endpoints, cacertfile=authority.cacertfile, token=token)
        try:
            shown = [Path(f"/proc/{holder.companion}/{name}").read_bytes() for name in ("cmdline", "environ")]
            for secret in (PASSWORD, SECRET, str(holder.lease_id)):
                assert not any(secret.encode() in each for each in shown)
            holder.kill9()
            holder.wait_given_back()
        finally:
            holder.close()
