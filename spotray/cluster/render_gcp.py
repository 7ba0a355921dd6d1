"""What a rendered cluster asks of Google Compute Engine."""

from __future__ import annotations

from spotray.cluster.render_aws import markets, usage
from spotray.cluster.spec import ClusterSpec, WorkerSpec
from spotray.cluster.yamltext import flow, scalar
from spotray.market import catalog

HEAD_PACKAGES = ("google-api-python-client", "google-auth-httplib2")
SERVICE_ACCOUNT = "ray-autoscaler-sa-v1"  # Ray makes it at the first `ray up`

_HEAD_IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
_GPU_IMAGE = (
    "projects/deeplearning-platform-release/global/images/family/"
    "common-cu129-ubuntu-2404-nvidia-580"
)


def notes(spec: ClusterSpec, file: str) -> list[str]:
    """For the top of the file: how to use it, and its limits."""
    lines = usage(file)
    if any(one.preemptible for one in spec.workers):
        lines += [
            "",
            "Preemptible is the older kind of spot, at the same price. Google ends each node 24",
            "hours after its start, with the same notice of 30 s; the autoscaler launches another.",
            "Nodes that start together end together: for longer runs take gcp-t4-spot.",
            "Ray's own provider: one zone, and no on-demand nodes while it is out.",
        ]
    return lines


def provider(spec: ClusterSpec) -> list[str]:
    """The lines under ``provider:``."""
    where = [
        f"region: {spec.region}",
        f"availability_zone: {','.join(spec.zones)}",
        f"project_id: {scalar(spec.project)}",
        "cache_stopped_nodes: false",
    ]
    if spec.provider == "ray":
        return ["type: gcp", *where]
    return [
        "type: external",
        "module: spotray.cluster.gcp.SpotNodeProvider"
        "  # spot or on-demand, and which zone, at every launch",
        *where,
        *markets(spec),
    ]


def resources(worker: WorkerSpec) -> dict[str, int]:
    """What Ray is told: it does not ask Google."""
    known = [catalog.find("gcp", name) for name in worker.instance_types]
    found = [one for one in known if one is not None]
    gpu = catalog.GCP_ACCELERATORS.get(worker.accelerator) or (found[0].gpu if found else "")
    gpus = 1 if worker.accelerator else min((one.gpus for one in found), default=1)
    cpus = min((one.cpus for one in found), default=1)
    named = {f"accelerator_type:{gpu}": 1} if gpu else {}
    return {"CPU": cpus, "GPU": gpus, **named}


def head(spec: ClusterSpec) -> list[str]:
    """The head's node_config."""
    image = spec.head.image or _HEAD_IMAGE
    return _node(spec, spec.head.instance_type, image, spec.head.disk_gib)


def worker(spec: ClusterSpec, worker: WorkerSpec) -> list[str]:
    """A pool's node_config."""
    image = worker.image or _GPU_IMAGE
    lines = _node(spec, worker.instance_types[0], image, worker.disk_gib)
    if worker.accelerator:
        lines += [
            "guestAccelerators:",
            f"  - {{acceleratorType: {worker.accelerator}, acceleratorCount: 1}}",
        ]
    scheduling: dict[str, object] = {"onHostMaintenance": "TERMINATE"}  # with a GPU always
    if worker.purchase == "spot" and spec.provider == "ray":
        scheduling |= {"automaticRestart": False}
        scheduling |= (
            {"preemptible": True}
            if worker.preemptible
            else {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
        )
    account = f"{SERVICE_ACCOUNT}@{spec.project}.iam.gserviceaccount.com"
    return [
        *lines,
        f"scheduling: {flow(scheduling)}",
        "serviceAccounts:  # made by Ray; may write to the bucket",
        f"  - email: {account}",
        "    scopes: [https://www.googleapis.com/auth/cloud-platform]",
    ]


def _node(spec: ClusterSpec, machine_type: str, image: str, disk_gib: int) -> list[str]:
    # Google's choice where none is named, pd-standard, is refused for a g2. Ray's provider
    # hands the name on as it is; ours puts the zone of the launch before it.
    zone = f"zones/{spec.zones[0]}/diskTypes/" if spec.provider == "ray" else ""
    return [
        f"machineType: {machine_type}",
        "disks:",
        "  - boot: true",
        "    autoDelete: true",
        "    type: PERSISTENT",
        "    initializeParams:",
        f"      diskSizeGb: {disk_gib}",
        f"      diskType: {zone}pd-balanced",
        f"      sourceImage: {image}",
    ]
