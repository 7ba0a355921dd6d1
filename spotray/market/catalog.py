"""Instance types that this project knows: what a machine has, not what it costs.

Only types with NVIDIA GPUs that are sold as spot, and small ones without for a head. They
stand in ``types.csv``, each with its source; what no source says is left open there.
A type that is missing here is no error: it is one about which nothing can be checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from spotray.errors import ConfigError
from spotray.market.table import read_table

CLOUDS = ("aws", "gcp", "azure")
_COLUMNS = (
    *("cloud", "name", "gpu", "gpus", "gpu_memory_gib", "cpus", "memory_gib"),
    *("network", "efa", "source", "date"),
)

# GCP attaches these to an n1; its word for them, and Ray's.
GCP_ACCELERATORS = {"nvidia-tesla-t4": "T4", "nvidia-tesla-v100": "V100", "nvidia-l4": "L4"}


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """One kind of machine that a cloud sells."""

    name: str
    cpus: int
    memory_gib: float
    gpus: int = 0  # built in; on GCP an n1 gets its GPUs by request
    gpu: str = ""  # as Ray calls it in ``accelerator_type:T4``
    efa: bool = False  # takes an Elastic Fabric Adapter
    gpu_memory_gib: float | None = None  # of one GPU; None: no source was at hand
    network: str = ""  # "up to 10 Gb/s"; empty: no source was at hand
    source: str = ""
    date: str = ""  # of the source

    def __post_init__(self) -> None:
        if self.cpus < 1 or not 0 < self.memory_gib < math.inf:
            raise ConfigError(
                f"{self.name}: {self.cpus} vCPUs and {self.memory_gib} GiB: give both above 0"
            )
        if self.gpus < 0 or bool(self.gpus) != bool(self.gpu):
            raise ConfigError(
                f"{self.name}: {self.gpus} GPUs of the kind {self.gpu!r}: give both or neither"
            )
        if self.gpu_memory_gib is not None and not 0 < self.gpu_memory_gib < math.inf:
            raise ConfigError(f"{self.name}: {self.gpu_memory_gib} GiB of GPU memory: above 0")


def find(cloud: str, name: str) -> InstanceType | None:
    """The type of that name, or None if it is not known here.

    >>> find("aws", "g5.xlarge").gpu
    'A10G'
    """
    return _bundled().get(cloud, {}).get(name)


def names(cloud: str) -> tuple[str, ...]:
    """All that are known of a cloud."""
    return tuple(_bundled().get(cloud, {}))


def gpus() -> tuple[str, ...]:
    """The kinds of GPU that some type has, sorted."""
    return tuple(
        sorted({one.gpu for types in _bundled().values() for one in types.values()} - {""})
    )


def smallest_with_efa(gpu: str) -> InstanceType | None:
    """The smallest single-GPU type of AWS with that GPU that takes an EFA.

    >>> smallest_with_efa("L4").name
    'g6.8xlarge'
    """
    fitting = [
        one for one in _bundled()["aws"].values() if one.efa and one.gpus == 1 and one.gpu == gpu
    ]
    return min(fitting, key=lambda one: (one.cpus, one.memory_gib), default=None)


def parse(text: str, *, name: str) -> Mapping[str, Mapping[str, InstanceType]]:
    """The types of a CSV document, by cloud and name.

    Raises:
        ConfigError: a column or a value is wrong, or a type stands there twice; the line is
            named.
    """
    found: dict[str, dict[str, InstanceType]] = {cloud: {} for cloud in CLOUDS}
    for where, cells in read_table(text, name=name, columns=_COLUMNS):
        cloud, type_name = cells["cloud"], cells["name"]
        if cloud not in found:
            raise ConfigError(f"{where}: cloud is {cloud!r}: write one of {', '.join(CLOUDS)}")
        if not type_name or type_name in found[cloud]:
            raise ConfigError(f"{where}: {cloud} {type_name!r}: give each type a name, and once")
        if cells["efa"] not in ("yes", "no"):
            raise ConfigError(f"{where}: efa is {cells['efa']!r}: write yes or no")
        memory = cells["gpu_memory_gib"]
        try:
            found[cloud][type_name] = InstanceType(
                name=type_name,
                cpus=int(cells["cpus"]),
                memory_gib=float(cells["memory_gib"]),
                gpus=int(cells["gpus"]),
                gpu=cells["gpu"],
                efa=cells["efa"] == "yes",
                gpu_memory_gib=float(memory) if memory else None,
                network=cells["network"],
                source=cells["source"],
                date=cells["date"],
            )
        except (ValueError, ConfigError) as exc:
            raise ConfigError(f"{where}: {exc}") from exc
    return found


@cache
def _bundled() -> Mapping[str, Mapping[str, InstanceType]]:
    text = files("spotray.market").joinpath("types.csv").read_text(encoding="utf-8")
    return parse(text, name="types.csv")
