"""How a node of the lab starts its Ray: command lines, environment, what must be free.

All nodes are on loopback and each has an address of its own (127.0.0.2, .3, ...), for
Ray Train counts the ranks of a node by its address.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from spotray.errors import ConfigError, LabError
from spotray.market.offer import Market

SHM = Path("/dev/shm")
TMP = Path("/tmp")  # not tempfile's choice: a socket's whole path may have 107 characters
_MIN_OBJECT_STORE_MIB = 75  # Ray takes no less
_SNAPSHOT_MIB = 32  # of each node's snapshots in shared memory
_MIB = 1024 * 1024
_TOKEN = secrets.token_hex(32)  # one for all labs of this process: it may be in several

# A lost node is known as such within two seconds, a silent one within five.
_HEALTH_CHECK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
# Ray starts as many processes of a node at a time as that offers CPUs: on a head without any
# one after the other, though each trial of a sweep wants one.
_STARTS = {"RAY_worker_maximum_startup_concurrency": "4"}


def driver_environment(address: str, journal: str | None) -> dict[str, str]:
    """What a driver needs in its environment to use the lab at ``address``."""
    return _access() | {"RAY_ADDRESS": address} | ({"SPOTRAY_JOURNAL": journal} if journal else {})


def let_ray_reread_access() -> None:
    """Make Ray, if it is loaded, see that the environment's mode and token are others now.

    Ray reads both when it is imported, which a driver may have done long before.
    """
    if "ray" not in sys.modules:
        return
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def node_environment(
    inherited: Mapping[str, str], *, quick_health_check: bool, is_head: bool = False
) -> dict[str, str]:
    """The environment of all processes of a node.

    Settings of another Ray, also of the token file in a home folder, stay outside.
    """
    kept = {k: v for k, v in inherited.items() if not k.startswith(("RAY_", "SPOTRAY_"))}
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package, kept.get("PYTHONPATH", "")]))
    health_check = _HEALTH_CHECK if quick_health_check else {}
    starts = _STARTS if is_head else {}
    return kept | _access() | health_check | starts | {"PYTHONPATH": path}


def _access() -> dict[str, str]:
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": _TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        # Ray's workers are nice to others by 15; beside anything else that computes on this
        # machine they would hardly get through their imports.
        "RAY_worker_niceness": "0",
    }


def head_command(*, cpus: int, object_store_mib: int, port: int, market: Market) -> tuple[str, ...]:
    """``port`` 0: one that is free; the head tells which."""
    return (
        *_ray_start(0, cpus=cpus, object_store_mib=object_store_mib, market=market),
        "--head",
        f"--port={port}",
        f"--ray-client-server-port={_free_port()}",  # Ray takes no 0 here
        "--include-dashboard=false",
        "--no-monitor",
        "--disable-usage-stats",
    )


def worker_command(
    index: int, *, head: str, cpus: int, object_store_mib: int, market: Market
) -> tuple[str, ...]:
    """``index`` from 1; ``head`` is the head's HOST:PORT."""
    return (
        *_ray_start(index, cpus=cpus, object_store_mib=object_store_mib, market=market),
        f"--address={head}",
    )


def agent_command(
    *, endpoint: str, head: str, journal: str | None, poll_s: float
) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "spotray.agent", "--cloud", "aws"),
        *("--endpoint", endpoint, "--ray-address", head, "--node-id", "{node_id}"),
        *("--poll-s", f"{poll_s:g}"),
        *(("--journal", journal) if journal else ()),
    )


def _ray_start(index: int, *, cpus: int, object_store_mib: int, market: Market) -> tuple[str, ...]:
    labels = {
        "ray.io/market-type": "spot" if market.spot else "on-demand",
        "ray.io/availability-zone": market.zone,
        "ray.io/availability-region": market.region,
        "ray.io/node-group": node_group(market, is_head=index == 0),
        "spotray.io/instance-type": market.instance_type,
    }
    return (
        *(sys.executable, "-m", "ray.scripts.scripts", "start"),
        f"--node-ip-address={node_ip(index)}",
        f"--num-cpus={cpus}",
        "--num-gpus=0",
        f"--object-store-memory={object_store_mib * _MIB}",
        "--temp-dir={ray_dir}",
        f"--labels={','.join(f'{key}={value}' for key, value in labels.items())}",
        "--dashboard-agent-listen-port=0",
        "--include-log-monitor=false",
    )


def node_group(market: Market, *, is_head: bool) -> str:
    """What a cluster's YAML would call this type of node."""
    if is_head:
        return "head"
    return "spot-worker" if market.spot else "on-demand-worker"


def node_ip(index: int) -> str:
    """Loopback address of the node of that index, the head being 0.

    >>> node_ip(0), node_ip(254)
    ('127.0.0.2', '127.0.1.0')
    """
    return f"127.0.{(index + 2) // 256 % 256}.{(index + 2) % 256}"


def check_shm(*, nodes: int, object_store_mib: int, free_bytes: int) -> None:
    """Refuse a lab that shared memory cannot hold.

    Raises:
        ConfigError: ``object_store_mib`` is below what Ray takes.
        LabError: too little is free; need, have and cure are named.
    """
    if object_store_mib < _MIN_OBJECT_STORE_MIB:
        raise ConfigError(
            f"object_store_mib is {object_store_mib}: Ray takes {_MIN_OBJECT_STORE_MIB} or more"
        )
    need_mib = nodes * (object_store_mib + _SNAPSHOT_MIB)
    have_mib = free_bytes // _MIB
    if have_mib < need_mib:
        raise LabError(
            f"{SHM} has {have_mib} MiB free, {nodes} nodes need {need_mib} MiB: start fewer "
            f"workers, or enlarge it (mount -o remount,size={need_mib * 2}m {SHM}, "
            f"docker run --shm-size={need_mib * 2}m)"
        )


def free_shm_bytes() -> int:
    return shutil.disk_usage(SHM).free


def check_port(port: int) -> None:
    """Refuse a port for the head that somebody listens on.

    Raises:
        LabError: names the port and the cure.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as exc:
            raise LabError(
                f"port {port} cannot be used ({exc.strerror}): give another one, or none to "
                "let the lab choose"
            ) from exc


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
