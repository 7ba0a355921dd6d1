"""The clusters that come with the package, by name: `spotray cluster new NAME`.

Each is small on purpose: single-GPU workers over several zones. `cluster-configs/` has
them rendered. What an account must fill in is a placeholder that `validate` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from spotray.cluster.spec import ClusterSpec, HeadSpec, WorkerSpec
from spotray.errors import ConfigError

BUCKET = "my-bucket"
PROJECT = "my-project"
SUBNET_ID = "subnet-00000000000000000"
SECURITY_GROUP_ID = "sg-00000000000000000"
PLACEHOLDERS = {
    BUCKET: "name your bucket",
    PROJECT: "give the id of your GCP project",
    SUBNET_ID: "give the id of a subnet of that zone (aws ec2 describe-subnets)",
    SECURITY_GROUP_ID: "give the id of a group that lets all through to and from itself, and SSH",
}

_REGION = "us-west-2"
_ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
_GCP_REGION = "us-central1"
_GCP_ZONES = ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f")
_AWS_HEAD = HeadSpec(instance_type="m6i.large")
_GCP_HEAD = HeadSpec(instance_type="n2-standard-2")


def _aws(name: str, *workers: WorkerSpec, provider: str = "spotray") -> ClusterSpec:
    return ClusterSpec(
        name=name,
        cloud="aws",
        region=_REGION,
        zones=_ZONES,
        storage=f"s3://{BUCKET}/spotray",
        head=_AWS_HEAD,
        workers=workers,
        provider="ray" if provider == "ray" else "spotray",
    )


def _gpus(*instance_types: str) -> WorkerSpec:
    return WorkerSpec(name="gpu", instance_types=instance_types)


def _gcp(name: str, worker: WorkerSpec, *zones: str, provider: str = "spotray") -> ClusterSpec:
    return ClusterSpec(
        name=name,
        cloud="gcp",
        region=_GCP_REGION,
        zones=zones,
        storage=f"gs://{BUCKET}/spotray",
        project=PROJECT,
        head=_GCP_HEAD,
        workers=(worker,),
        provider="ray" if provider == "ray" else "spotray",
    )


def _all() -> tuple[ClusterSpec, ...]:
    t4 = WorkerSpec(name="gpu", instance_types=("n1-standard-8",), accelerator="nvidia-tesla-t4")
    return (
        _aws("aws-g5-spot", _gpus("g5.xlarge", "g5.2xlarge")),
        _aws("aws-g6-spot", _gpus("g6.xlarge", "g6.2xlarge")),
        _aws("aws-g4dn-spot", _gpus("g4dn.xlarge", "g4dn.2xlarge")),
        ClusterSpec(
            name="aws-g6-efa",
            cloud="aws",
            region=_REGION,
            zones=_ZONES[:1],
            storage=f"s3://{BUCKET}/spotray",
            head=HeadSpec(instance_type="m6i.large", security_group_id=SECURITY_GROUP_ID),
            workers=(
                WorkerSpec(
                    name="gpu",
                    instance_types=("g6.8xlarge",),
                    efa=True,
                    placement_group="spotray-aws-g6-efa",
                    subnet_id=SUBNET_ID,
                    security_group_id=SECURITY_GROUP_ID,
                ),
            ),
        ),
        _aws(
            "aws-mixed",
            WorkerSpec(
                name="steady",
                instance_types=("g5.xlarge",),
                purchase="on-demand",
                min_workers=1,
                max_workers=1,
            ),
            WorkerSpec(name="spot", instance_types=("g5.xlarge", "g6.xlarge")),
        ),
        _aws(
            "aws-plain",
            WorkerSpec(name="gpu-spot", instance_types=("g5.xlarge",)),
            WorkerSpec(name="gpu-on-demand", instance_types=("g5.xlarge",), purchase="on-demand"),
            provider="ray",
        ),
        _gcp(
            "gcp-l4-spot",
            WorkerSpec(name="gpu", instance_types=("g2-standard-4",)),
            *_GCP_ZONES[:3],
        ),
        _gcp("gcp-t4-spot", t4, *_GCP_ZONES),
        _gcp(
            "gcp-t4-preemptible",
            WorkerSpec(
                name="gpu",
                instance_types=("n1-standard-8",),
                accelerator="nvidia-tesla-t4",
                preemptible=True,
            ),
            _GCP_ZONES[0],
            provider="ray",
        ),
        ClusterSpec(
            name="azure-nc-t4-spot",
            cloud="azure",
            region="eastus",
            zones=("1", "2", "3"),
            storage=f"abfs://spotray@{BUCKET}.dfs.core.windows.net/spotray",
            resource_group="spotray",
            head=HeadSpec(instance_type="Standard_D2s_v3"),
            workers=(WorkerSpec(name="gpu", instance_types=("Standard_NC4as_T4_v3",)),),
            provider="ray",
        ),
    )


class _Presets(Mapping[str, ClusterSpec]):
    """By name. Names cost nothing; the first spec makes all, which reads the catalog.

    ``spotray --help`` lists the names, and is to answer at once.
    """

    _names = (
        *("aws-g5-spot", "aws-g6-spot", "aws-g4dn-spot", "aws-g6-efa", "aws-mixed", "aws-plain"),
        *("gcp-l4-spot", "gcp-t4-spot", "gcp-t4-preemptible", "azure-nc-t4-spot"),
    )

    @cached_property
    def _specs(self) -> dict[str, ClusterSpec]:
        return {one.name: one for one in _all()}

    def __getitem__(self, name: str) -> ClusterSpec:
        return self._specs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


PRESETS: Mapping[str, ClusterSpec] = _Presets()


def preset(name: str) -> ClusterSpec:
    """The spec of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in PRESETS:
        raise ConfigError(f"no cluster is called {name!r}: take {', '.join(PRESETS)}")
    return PRESETS[name]
