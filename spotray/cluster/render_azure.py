"""What a rendered cluster asks of Azure."""

from __future__ import annotations

from spotray.cluster.render_aws import usage
from spotray.cluster.spec import ClusterSpec, WorkerSpec
from spotray.cluster.yamltext import flow, scalar
from spotray.market import catalog

# What Ray's provider for Azure imports; its versions are Ray's own.
HEAD_PACKAGES = (
    "azure-common==1.1.28",
    "azure-core==1.35.0",
    "azure-identity==1.23.1",
    "azure-mgmt-compute==35.0.0",
    "azure-mgmt-network==29.0.0",
    "azure-mgmt-resource==24.0.0",
    "msrest==0.7.1",
    "msrestazure==0.6.4.post1",
)

_IMAGE = {  # Microsoft's image for data science: Ubuntu 22.04 with NVIDIA's driver
    "imagePublisher": "microsoft-dsvm",
    "imageOffer": "ubuntu-2204",
    "imageSku": "2204-gen2",
    "imageVersion": "latest",
}


def notes(spec: ClusterSpec, file: str) -> list[str]:
    """For the top of the file: how to use it, and its limits."""
    return [
        *usage(file),
        "",
        "Ray's own provider: no on-demand nodes while spot is out, and it asks on. The controller",
        "on the head brings nothing back to spot here: it asks again for workers that are taken,",
        "tells of all nodes, and minds deadlines and budgets. The identity that Ray gives the",
        "nodes needs the role 'Storage Blob Data Contributor' on the bucket.",
    ]


def provider(spec: ClusterSpec) -> list[str]:
    """The lines under ``provider:``."""
    return [
        "type: azure",
        f"location: {spec.region}",
        f"resource_group: {scalar(spec.resource_group)}",
        f'availability_zone: "{",".join(spec.zones)}"',
        "cache_stopped_nodes: false",
    ]


def resources(worker: WorkerSpec) -> dict[str, int]:
    """What Ray is told: it does not ask Azure."""
    known = catalog.find("azure", worker.instance_types[0])
    if known is None:
        return {"CPU": 1, "GPU": 1}
    return {"CPU": known.cpus, "GPU": known.gpus, f"accelerator_type:{known.gpu}": 1}


def head(spec: ClusterSpec) -> list[str]:
    """The head's node_config."""
    return _node(spec.head.instance_type, spec.head.disk_gib, spec.head.image)


def worker(spec: ClusterSpec, worker: WorkerSpec) -> list[str]:
    """A pool's node_config."""
    lines = _node(worker.instance_types[0], worker.disk_gib, worker.image)
    if worker.purchase == "spot":
        lines += [
            "  priority: Spot",
            "  evictionPolicy: Delete",
            "  billingProfile: {maxPrice: -1}  # up to the on-demand price: never taken for it",
        ]
    return lines


def _node(size: str, disk_gib: int, image: str) -> list[str]:
    named = {"imageId": image} if image else _IMAGE
    return [
        "azure_arm_parameters:",
        f"  vmSize: {size}",
        *(f"  {key}: {flow(value)}" for key, value in named.items()),
        f"  osDiskSize: {disk_gib}",
    ]
