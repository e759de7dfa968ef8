"""What a killed test had mounted is gone with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.network.ports import wait_until

PATIENCE_S: Final = 30.0
STORY: Final = """
import sys, time
from pathlib import Path
from tests.mounts import mount, private_mounts

image, place = map(Path, sys.argv[1:])
with private_mounts():
    mount("-o", "loop", str(image), str(place))
    print("mounted" if place.is_mount() else "no", flush=True)
    time.sleep(60)
"""
REPOSITORY: Final = Path(__file__).parents[2]


def loops_of(image: Path) -> str:
    return subprocess.run(["losetup", "-j", str(image)], capture_output=True, text=True, check=True).stdout


@pytest.mark.process
def test_a_killed_test_leaves_neither_a_mount_nor_a_loop_device(tmp_path: Path) -> None:
    image, place = tmp_path / "image", tmp_path / "place"
    place.mkdir()
    for command in (["truncate", "-s", "16M", str(image)], ["mkfs.ext4", "-q", "-F", str(image)]):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip(f"this machine refuses {command[0]}")
    with subprocess.Popen(
        [sys.executable, "-c", STORY, str(image), str(place)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as killed:
        assert killed.stdout is not None
        said = killed.stdout.readline().strip()
        is_seen = place.is_mount()
        had_loop = bool(loops_of(image))
        killed.kill()
        _, trouble = killed.communicate()
    if "Skipped" in trouble:
        pytest.skip(trouble.splitlines()[-1])
    assert (said, is_seen, had_loop) == ("mounted", False, True)
    wait_until(lambda: not loops_of(image), "the end of the loop device", PATIENCE_S)
