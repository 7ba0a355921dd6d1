"""Machines made of namespaces: own network, processes, file system, host name.

Runs inside of the rig. A machine has this one's programs and libraries, and nothing of its
`/home`, `/tmp`, `/root`, `/run` and `/dev/shm`. All is on the rig's own tmpfs, so nothing is
ever removed by hand: it goes with the rig.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.emulated.needs import program

BRIDGE = "br0"
GATEWAY = "172.31.0.1"  # the cloud's own address in the network of its instances
NETWORK_BITS = 16
USER, UID = "ubuntu", 20001  # a machine's user; an id that this machine's users hardly have
_BOOT = Path(__file__).with_name("boot.sh")
_HALT_S = 5.0
_NVME = "nvme-Amazon_Elastic_Block_Store_"
_SSHD = """\
Port 22
HostKey /run/host_key
PidFile none
UsePAM no
PasswordAuthentication no
PermitRootLogin no
StrictModes no
UseDNS no
MaxStartups 100
MaxSessions 100
"""


class Machine:
    """One machine, from its start to its end."""

    def __init__(
        self,
        folder: Path,
        *,
        ip: str,
        public_ip: str | None = None,
        visible: Sequence[Path] = (),
        ssh: tuple[Path, str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        """Start it; it answers on return, but for sshd, which takes a few ms.

        Args:
            folder: for its files; on the rig's tmpfs.
            ip: its address in the cloud's network.
            public_ip: another one, by which it is reached from outside.
            visible: folders of this machine that would be hidden otherwise.
            ssh: the host's private key, and the public key that lets one in as `USER`.
            environment: of each session over SSH.
        """
        self.folder, self.ip, self.public_ip = folder, ip, public_ip
        self.name = f"ip-{ip.replace('.', '-')}"
        self.root = folder / "root"
        self._veth = f"v{ip.replace('.', '')[-8:]}-{id(self) % 997}"
        self._write_etc()
        if ssh is not None:
            self._write_ssh(*ssh, environment or {})
        self._process = subprocess.Popen(
            [
                *(program("unshare"), "--net", "--mount", "--pid", "--uts", "--ipc"),
                *("--fork", "--kill-child", "--", "/bin/bash", str(_BOOT)),
                *(str(folder), self.name, *map(str, visible)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(folder / "boot.log").open("w"),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"up\n":
            raise RuntimeError(f"no machine: {(folder / 'boot.log').read_text()}")
        self._plug_in()

    @property
    def pid(self) -> int:
        """Of its process 1, as the rig sees it."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def plug_in_disk(self, name: str, device: int) -> None:
        """Let it see a block device as instances on Nitro see a volume of that id."""
        dev = Path(f"/proc/{self.pid}/root/dev")
        node = dev / f"nvme{len(list(dev.glob('nvme*'))) + 1}n1"
        os.mknod(node, stat.S_IFBLK | 0o600, device)
        link = dev / "disk" / "by-id" / f"{_NVME}{name.replace('-', '')}"
        link.symlink_to(f"../../{node.name}")

    def unplug(self) -> None:
        """Cut its network, without a word to anybody it talked to."""
        _sh(f"ip link set {self._veth} nomaster down")

    def halt(self) -> None:
        """Shut it down as clouds do: its processes get SIGTERM, then it is gone."""
        try:
            os.kill(self.pid, signal.SIGTERM)
            self._process.wait(_HALT_S)
        except (IndexError, ProcessLookupError):
            pass  # it has ended by itself
        except subprocess.TimeoutExpired:
            pass  # it did not go, so its power is cut
        self.destroy()

    def destroy(self) -> None:
        """Cut its network and its power at once."""
        if self._process.poll() is None:
            self.unplug()
            self._process.kill()
        self._process.wait()
        if self.public_ip:
            _sh(f"ip route del {self.public_ip}/32 || true")

    def _write_etc(self) -> None:
        etc = self.folder / "etc"
        etc.mkdir(parents=True)
        lines = {"passwd": f"{USER}:x:{UID}:{UID}::/home/{USER}:/bin/bash"}
        lines |= {"group": f"{USER}:x:{UID}:", "shadow": f"{USER}:*:19000:0:99999:7:::"}
        for name, own in lines.items():
            others = Path("/etc", name).read_text().splitlines()
            kept = [one for one in others if one.split(":")[0] != USER]
            (etc / name).write_text("\n".join([*kept, own]) + "\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{self.ip} {self.name}\n")
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "resolv.conf").write_text("")  # so that looking up a name fails at once

    def _write_ssh(self, host_key: Path, public_key: str, environment: dict[str, str]) -> None:
        run = self.root / "run"
        run.mkdir(parents=True)
        shutil.copy(host_key, run / "host_key")
        (run / "host_key").chmod(0o600)
        told = "".join(f' "{name}={value}"' for name, value in environment.items())
        (run / "sshd_config").write_text(_SSHD + (f"SetEnv{told}\n" if told else ""))
        home = self.root / "home" / USER
        shutil.copytree("/etc/skel", home)
        (home / ".ssh").mkdir()
        (home / ".ssh" / "authorized_keys").write_text(public_key + "\n")
        _install(home)
        as_root = run / "as_root"
        shutil.copy(program("setpriv"), as_root)
        as_root.chmod(0o4755)
        for path in (home, *home.rglob("*")):
            os.chown(path, UID, UID, follow_symlinks=False)
        (home / ".ssh").chmod(0o700)

    def _plug_in(self) -> None:
        pid = self._process.pid
        inside = f"nsenter --net=/proc/{pid}/ns/net ip"
        _sh(f"ip link add {self._veth} type veth peer name eth0 netns {pid}")
        _sh(f"ip link set {self._veth} master {BRIDGE} up")
        _sh(f"{inside} link set lo up")
        _sh(f"{inside} addr add {self.ip}/{NETWORK_BITS} dev eth0")
        _sh(f"{inside} link set eth0 up")
        _sh(f"{inside} route add default via {GATEWAY} src {self.ip}")
        if self.public_ip:
            _sh(f"{inside} addr add {self.public_ip}/32 dev eth0")
            _sh(f"ip route replace {self.public_ip}/32 dev {BRIDGE}")


def _install(home: Path) -> None:
    """What setting a machine up would download: here its image has it.

    ``~/venv`` is this interpreter's environment. ``uv`` installs nothing into it, but it
    fails as uv would where the checkout that it is told to install did not arrive.
    """
    (home / "venv").symlink_to(sys.prefix)
    uv = home / ".local" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(
        "#!/bin/bash\n"
        "# Stands for uv on an emulated machine, which cannot download.\n"
        'echo "$*" >> ~/uv.log\n'
        'while [ $# -gt 0 ]; do case $1 in -e) project="${2%%[*}/pyproject.toml" ;; esac; shift; '
        "done\n"
        'if [ -n "${project-}" ] && [ ! -e "$project" ]; then\n'
        '    echo "error: $project not found" >&2\n'
        "    exit 2\n"
        "fi\n"
    )
    uv.chmod(0o755)
    sudo = uv.with_name("sudo")
    sudo.write_text(
        "#!/bin/bash\n"
        "# Stands for sudo, which this machine's images may lack.\n"
        "exec /run/as_root --reuid=0 --regid=0 --clear-groups -- "
        'env PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"\n'
    )
    sudo.chmod(0o755)


def make_network() -> None:
    """The bridge that machines are plugged into, with the addresses of the cloud itself."""
    for command in (
        "ip link set lo up",
        # Its address stays the same when machines come and go: neighbours keep it for long.
        f"ip link add {BRIDGE} address 02:00:ac:1f:00:01 type bridge",
        f"ip addr add {GATEWAY}/{NETWORK_BITS} dev {BRIDGE}",
        f"ip addr add 169.254.169.254/32 dev {BRIDGE}",
        f"ip link set {BRIDGE} up",
        # There is no way out of here, and who looks for one is told so at once.
        "ip route add unreachable default",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        f"echo 0 > /proc/sys/net/ipv4/conf/{BRIDGE}/send_redirects",
    ):
        _sh(command)


def _sh(command: str) -> None:
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")
