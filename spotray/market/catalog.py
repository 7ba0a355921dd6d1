"""Instance types that this project knows: what a machine has, not what it costs.

Only types with NVIDIA GPUs that are sold as spot, and small ones without for a head.
A type that is missing here is no error: it is one about which nothing can be checked.
"""

from __future__ import annotations

from dataclasses import dataclass

CLOUDS = ("aws", "gcp", "azure")


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """One kind of machine that a cloud sells."""

    name: str
    cpus: int
    memory_gib: float
    gpus: int = 0  # built in; on GCP an n1 gets its GPUs by request
    gpu: str = ""  # as Ray calls it in ``accelerator_type:T4``
    efa: bool = False  # takes an Elastic Fabric Adapter


def find(cloud: str, name: str) -> InstanceType | None:
    """The type of that name, or None if it is not known here.

    >>> find("aws", "g5.xlarge").gpu
    'A10G'
    """
    return _CATALOG.get(cloud, {}).get(name)


def names(cloud: str) -> tuple[str, ...]:
    """All that are known of a cloud."""
    return tuple(_CATALOG.get(cloud, {}))


def smallest_with_efa(gpu: str) -> InstanceType | None:
    """The smallest single-GPU type of AWS with that GPU that takes an EFA.

    >>> smallest_with_efa("L4").name
    'g6.8xlarge'
    """
    fitting = [one for one in _AWS if one.efa and one.gpus == 1 and one.gpu == gpu]
    return min(fitting, key=lambda one: (one.cpus, one.memory_gib), default=None)


def _aws(family: str, gpu: str, sizes: str) -> list[InstanceType]:
    """Types of a family from ``SIZE CPUS MEMORY GPUS[e]``, ``e`` for EFA, by commas."""
    found = []
    for size in sizes.split(","):
        name, cpus, memory_gib, gpus = size.split()
        found.append(
            InstanceType(
                name=f"{family}.{name}",
                cpus=int(cpus),
                memory_gib=float(memory_gib),
                gpus=int(gpus.removesuffix("e")),
                gpu=gpu,
                efa=gpus.endswith("e"),
            )
        )
    return found


_SIZES = "4xlarge 16 64 1, 8xlarge 32 128 1e, 16xlarge 64 256 1e, 12xlarge 48 192 4e"

# Source: EC2's DescribeInstanceTypes, as moto 5.2.5 has it stored.
_AWS = (
    *_aws("g4dn", "T4", f"xlarge 4 16 1, 2xlarge 8 32 1, {_SIZES}, metal 96 384 8e"),
    *_aws(
        "g5",
        "A10G",
        f"xlarge 4 16 1, 2xlarge 8 32 1, {_SIZES}, 24xlarge 96 384 4e, 48xlarge 192 768 8e",
    ),
    *_aws(
        "g6",
        "L4",
        f"xlarge 4 16 1, 2xlarge 8 32 1, {_SIZES}, 24xlarge 96 384 4e, 48xlarge 192 768 8e",
    ),
    *_aws("gr6", "L4", "4xlarge 16 128 1, 8xlarge 32 256 1e"),
    *_aws(
        "g6e",
        "L40S",
        "xlarge 4 32 1, 2xlarge 8 64 1, 4xlarge 16 128 1, 8xlarge 32 256 1e, "
        "16xlarge 64 512 1e, 12xlarge 48 384 4e, 24xlarge 96 768 4e, 48xlarge 192 1536 8e",
    ),
    *_aws("p3", "V100", "2xlarge 8 61 1, 8xlarge 32 244 4, 16xlarge 64 488 8"),
    *_aws("p3dn", "V100", "24xlarge 96 768 8e"),
    *_aws("p4d", "A100", "24xlarge 96 1152 8e"),
    *_aws("p4de", "A100", "24xlarge 96 1152 8e"),
    *_aws("p5", "H100", "4xlarge 16 256 1e, 48xlarge 192 2048 8e"),
    *_aws("p5e", "H200", "48xlarge 192 2048 8e"),
    *_aws("p5en", "H200", "48xlarge 192 2048 8e"),
    *_aws("m5", "", "large 2 8 0, xlarge 4 16 0, 2xlarge 8 32 0"),
    *_aws("m6i", "", "large 2 8 0, xlarge 4 16 0, 2xlarge 8 32 0"),
    *_aws("m7i", "", "large 2 8 0, xlarge 4 16 0, 2xlarge 8 32 0"),
)

# Source: Google's and Microsoft's pages on machine types.
_GCP = (
    InstanceType(name="g2-standard-4", cpus=4, memory_gib=16, gpus=1, gpu="L4"),
    InstanceType(name="g2-standard-8", cpus=8, memory_gib=32, gpus=1, gpu="L4"),
    InstanceType(name="g2-standard-12", cpus=12, memory_gib=48, gpus=1, gpu="L4"),
    InstanceType(name="g2-standard-16", cpus=16, memory_gib=64, gpus=1, gpu="L4"),
    InstanceType(name="g2-standard-24", cpus=24, memory_gib=96, gpus=2, gpu="L4"),
    InstanceType(name="g2-standard-32", cpus=32, memory_gib=128, gpus=1, gpu="L4"),
    InstanceType(name="g2-standard-48", cpus=48, memory_gib=192, gpus=4, gpu="L4"),
    InstanceType(name="g2-standard-96", cpus=96, memory_gib=384, gpus=8, gpu="L4"),
    InstanceType(name="a2-highgpu-1g", cpus=12, memory_gib=85, gpus=1, gpu="A100"),
    InstanceType(name="a2-ultragpu-1g", cpus=12, memory_gib=170, gpus=1, gpu="A100"),
    *(
        InstanceType(name=f"n1-standard-{cpus}", cpus=cpus, memory_gib=3.75 * cpus)
        for cpus in (1, 2, 4, 8, 16, 32)
    ),
    *(
        InstanceType(name=f"{family}-standard-{cpus}", cpus=cpus, memory_gib=4 * cpus)
        for family in ("e2", "n2")
        for cpus in (2, 4, 8, 16)
    ),
)

_AZURE = (
    InstanceType(name="Standard_NC4as_T4_v3", cpus=4, memory_gib=28, gpus=1, gpu="T4"),
    InstanceType(name="Standard_NC8as_T4_v3", cpus=8, memory_gib=56, gpus=1, gpu="T4"),
    InstanceType(name="Standard_NC16as_T4_v3", cpus=16, memory_gib=110, gpus=1, gpu="T4"),
    InstanceType(name="Standard_NC64as_T4_v3", cpus=64, memory_gib=440, gpus=4, gpu="T4"),
    InstanceType(name="Standard_NC24ads_A100_v4", cpus=24, memory_gib=220, gpus=1, gpu="A100"),
    InstanceType(name="Standard_NC48ads_A100_v4", cpus=48, memory_gib=440, gpus=2, gpu="A100"),
    InstanceType(name="Standard_D2s_v3", cpus=2, memory_gib=8),
    InstanceType(name="Standard_D2s_v5", cpus=2, memory_gib=8),
    InstanceType(name="Standard_D4s_v3", cpus=4, memory_gib=16),
    InstanceType(name="Standard_D4s_v5", cpus=4, memory_gib=16),
)

# GCP attaches these to an n1; its word for them, and Ray's.
GCP_ACCELERATORS = {"nvidia-tesla-t4": "T4", "nvidia-tesla-v100": "V100", "nvidia-l4": "L4"}

_CATALOG = {
    cloud: {one.name: one for one in types}
    for cloud, types in (("aws", _AWS), ("gcp", _GCP), ("azure", _AZURE))
}
