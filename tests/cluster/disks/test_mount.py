"""The script that mounts a data disk, on real block devices where there is root."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotray.cluster.disks.mount import Mounted, mount_command, said


class Node:
    """A mount namespace of its own, a folder in it, and disks."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "data"
        self.devices: list[str] = []
        sudo = home / "sudo"  # we are root already, and a small image has no sudo
        sudo.write_text('#!/bin/sh\nexec "$@"\n')
        sudo.chmod(0o755)

    def disk(self, mib: int = 64) -> str:
        image = self.home / f"{len(self.devices)}.img"
        image.touch()
        with image.open("r+b") as file:
            file.truncate(mib * 2**20)
        return self.attach(image)

    def attach(self, image: Path) -> str:
        done = subprocess.run(
            ["losetup", "-f", "--show", str(image)], check=True, capture_output=True, text=True
        )
        self.devices.append(done.stdout.strip())
        return self.devices[-1]

    def run(self, *commands: str) -> str:
        """What commands print, one after the other in one namespace, which ends with them."""
        done = subprocess.run(
            ["unshare", "-m", "bash", "-c", "\n".join(commands)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={"PATH": f"{self.home}:/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        return done.stdout + done.stderr

    def mount(self, *found_at: str, then: str = "true") -> Mounted:
        return said(self.run(mount_command(str(self.folder), found_at, wait_s=1), then))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for device in made.devices:
        subprocess.run(["losetup", "-d", device], check=False, capture_output=True)


@pytest.mark.root
def test_an_empty_disk_is_formatted_and_the_next_node_finds_what_is_on_it(node: Node) -> None:
    device = node.disk()
    first = node.mount(device, then=f"echo kept > {node.folder}/file")
    assert first == Mounted(is_mounted=True, was_formatted=True)
    command = mount_command(str(node.folder), [device])
    out = node.run(command, f"cat {node.folder}/file")
    assert said(out) == Mounted(is_mounted=True)
    assert out.endswith("kept\n")


@pytest.mark.root
def test_a_second_run_on_the_same_node_changes_nothing(node: Node) -> None:
    command = mount_command(str(node.folder), [node.disk()])
    out = node.run(command, f"echo kept > {node.folder}/file", command, f"cat {node.folder}/file")
    assert said(out) == Mounted(is_mounted=True)
    assert out.endswith("kept\n")


@pytest.mark.root
def test_a_disk_that_lost_its_node_in_the_middle_of_a_write_is_mounted(node: Node) -> None:
    device = node.disk()
    write = f"for i in $(seq 200); do echo $i > {node.folder}/$i; done; sync -f {node.folder}"
    copy = node.home / "copy.img"
    # A copy while it is mounted is what EBS has at the moment of a reclaim.
    node.run(mount_command(str(node.folder), [device]), write, f"dd if={device} of={copy} bs=1M")
    other = node.attach(copy)
    out = node.run(mount_command(str(node.folder), [other]), f"cat {node.folder}/200")
    assert said(out) == Mounted(is_mounted=True)
    assert out.endswith("200\n")


@pytest.mark.root
@pytest.mark.parametrize("what", ["partitions", "swap"])
def test_what_is_not_empty_is_never_formatted(node: Node, what: str) -> None:
    device = node.disk()
    if what == "swap":
        node.run(f"mkswap -q {device}")
        why = "cannot be mounted"
    else:
        one = struct.pack("<B3sB3sII", 0, b"\0\2\0", 0x83, b"\xff\xff\xff", 2048, 100_000)
        with open(device, "r+b") as file:
            file.write(b"\0" * 446 + one + b"\0" * 48 + b"\x55\xaa")
        why = "partitions"
    before = Path(device).read_bytes()
    assert any(before)
    assert why in node.mount(device).why_not
    assert Path(device).read_bytes() == before


@pytest.mark.root
def test_another_file_system_is_mounted_as_it_is(node: Node) -> None:
    device = node.disk()
    made = node.run(f"mkfs.ext2 -q {device} && echo made")
    assert "made" in made
    assert node.mount(device) == Mounted(is_mounted=True)


@pytest.mark.root
def test_a_device_that_does_not_come_leaves_an_ordinary_folder(node: Node) -> None:
    answer = node.mount("/dev/disk/by-id/nothing", "vol0123456789")
    assert not answer.is_mounted
    assert "no device /dev/disk/by-id/nothing vol0123456789" in answer.why_not
    assert node.folder.is_dir()


@pytest.mark.root
def test_a_folder_where_something_else_is_mounted_is_left_alone(node: Node) -> None:
    command = mount_command(str(node.folder), [node.disk()], wait_s=1)
    out = node.run(f"mkdir -p {node.folder}; mount -t tmpfs none {node.folder}", command)
    assert "none is at" in said(out).why_not


@pytest.mark.root
def test_a_disk_that_is_mounted_elsewhere_is_left_alone(node: Node) -> None:
    device = node.disk()
    other = node.home / "other"
    command = mount_command(str(node.folder), [device], wait_s=1)
    out = node.run(f"mkfs.ext4 -q {device}; mkdir {other}; mount {device} {other}", command)
    assert "mounted elsewhere" in said(out).why_not


@pytest.mark.root
def test_without_a_disk_the_folder_is_there_and_writable(node: Node) -> None:
    assert node.mount() == Mounted(is_mounted=False)
    assert node.folder.is_dir()


@pytest.mark.root
def test_the_first_path_that_exists_is_taken(node: Node) -> None:
    device = node.disk()
    link = node.home / "by-id"
    link.symlink_to(device)
    assert node.mount("/dev/nothing-here", str(link), "/dev/null") == Mounted(
        is_mounted=True, was_formatted=True
    )


def mounted(*, formatted: bool = False) -> Mounted:
    return Mounted(is_mounted=True, was_formatted=formatted)


def failed(why: str) -> Mounted:
    return Mounted(is_mounted=False, why_not=why)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("motd\r\nspotray-disk: mounted: /dev/sdf, formatted\r\n", mounted(formatted=True)),
        ("spotray-disk: mounted: /dev/sdf, with what was on it\n", mounted()),
        ("spotray-disk: none\n", Mounted(is_mounted=False)),
        ("spotray-disk: failed: no device\nConnection closed.\n", failed("no device")),
        ("ClickException: SSH command failed.", failed("?")),
    ],
)
def test_the_last_word_of_the_script_is_understood(output: str, expected: Mounted) -> None:
    answer = said(output)
    assert answer.is_mounted is expected.is_mounted
    assert answer.was_formatted is expected.was_formatted
    if expected.why_not == "?":
        assert "SSH command failed" in answer.why_not
    else:
        assert answer.why_not == expected.why_not


def test_the_command_is_one_that_bash_reads_inside_rays_quotes() -> None:
    from ray.autoscaler._private.command_runner import _with_interactive

    command = mount_command("/data", ["/dev/disk/by-id/it's", "vol01"])
    words = _with_interactive(command)
    subprocess.run(["bash", "-n", "-c", " ".join(words)], check=True)
