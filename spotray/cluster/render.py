"""From a `ClusterSpec` to the YAML that ``ray up`` takes: small, with its reasons beside it.

Here is what all clouds share: the commands that set a node up and start Ray on it. What a
cloud is asked for stands in the file of that cloud.
"""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from spotray.cluster import render_aws, render_azure, render_gcp
from spotray.cluster.spec import ClusterSpec, WorkerSpec
from spotray.cluster.yamltext import command, flow, indent, scalar

RAY_VERSION = "2.60.0"  # on all nodes, and on the machine that says `ray up`
PYTHON_VERSION = "3.11"
UV_VERSION = "0.13.9"

# Four failed checks give a node up: about 4 s after it is lost, 12 s after it fell silent.
# Ray's own settings take 15 and 62. Shorter ones would take a busy node for a lost one.
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
    "AUTOSCALER_UPDATE_INTERVAL_S": "2",
}
# Processes that the head starts at a time. Ray's own number is that of the CPUs that a node
# offers, and here the head offers none: then the trials of a sweep begin one after the other.
_HEAD_STARTS = "RAY_worker_maximum_startup_concurrency=4"
_EXTRA = {"aws": "[aws]", "gcp": "[gcp]", "azure": ""}
_HEAD = "$RAY_HEAD_IP:6379"
_WHAT_FOR = {  # the controller
    "spotray": "Brings the cluster back to spot",
    "ray": "Asks again for workers that are taken",
}
_CLOUDS = {"aws": render_aws, "gcp": render_gcp, "azure": render_azure}


def render(spec: ClusterSpec, *, made_by: str, file: str) -> str:
    """The YAML of a cluster.

    Args:
        made_by: the command that renders it, for its first line.
        file: where it will be, as its user would write that.
    """
    cloud = _CLOUDS[spec.cloud]
    place = ", from the root of a checkout of spotray" if spec.package.startswith(".") else ""
    notes = [_summary(spec), "", f"To use it{place}:", *cloud.notes(spec, file)]
    lines = [
        f"# Rendered by: {made_by}",
        *(f"# {line}".rstrip() for line in notes),
        "",
        f"cluster_name: {spec.name}",
        f"max_workers: {spec.max_workers + any(_may_swap(spec, one) for one in spec.workers)}",
        f"idle_timeout_minutes: {scalar(spec.idle_minutes)}",
        f"upscaling_speed: {max(1, spec.max_workers)}  # all that are missing at once",
        "",
        "provider:",
        *indent(cloud.provider(spec), 2),
        "",
        "auth:",
        f"  ssh_user: {spec.ssh_user}",
        "",
        "head_node_type: head",
        "available_node_types:",
        *indent(_head(spec), 2),
    ]
    for worker in spec.workers:
        lines += indent(_worker(spec, worker), 2)
    lines += ["", *_files(spec), "", *_setup(spec), "", *_start(spec)]
    return "\n".join(lines) + "\n"


def environment(spec: ClusterSpec) -> dict[str, str]:
    """What every shell of a node has in its environment."""
    given = {"PATH": "$HOME/venv/bin:$PATH", **_ENVIRONMENT}
    given["SPOTRAY_JOURNAL"] = f"{spec.storage.rstrip('/')}/clusters/{spec.name}"
    if any(worker.efa for worker in spec.workers):
        given["LD_LIBRARY_PATH"] = "/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib"
    return given


def agent_command(spec: ClusterSpec) -> str:
    """What watches a worker for the notice of its preemption."""
    return f"python -m spotray.agent --cloud {spec.cloud} --ray-address {_HEAD}"


def controller_command(spec: ClusterSpec) -> str:
    """What brings the cluster back to spot, and remembers what was taken from it."""
    return "python -m spotray.controller --ray-address 127.0.0.1:6379"


def _may_swap(spec: ClusterSpec, worker: WorkerSpec) -> bool:
    """Whether the controller may replace nodes of a pool, for which there must be room."""
    returns = worker.purchase == "spot" and worker.fallback == "on-demand"
    ends = worker.preemptible
    return ends or (returns and spec.provider == "spotray")


def _summary(spec: ClusterSpec) -> str:
    pools = []
    for one in spec.workers:
        least = f"{one.min_workers} to " if one.min_workers not in (0, one.max_workers) else ""
        upto = "up to " if one.min_workers == 0 else ""
        kind = "preemptible" if one.preemptible else one.purchase
        pools.append(f"{upto}{least}{one.max_workers} {kind} ({' or '.join(one.instance_types)})")
    zones = f"{len(spec.zones)} zones" if len(spec.zones) > 1 else "one zone"
    return f"An on-demand head; workers: {', '.join(pools)}, in {zones} of {spec.region}."


def _head(spec: ClusterSpec) -> list[str]:
    cloud = _CLOUDS[spec.cloud]
    return [
        "head:  # never spot; CPU 0 keeps the work off it",
        "  resources: {CPU: 0}",
        *_labels(spec, None),
        "  node_config:",
        *indent(cloud.head(spec), 4),
    ]


def _worker(spec: ClusterSpec, worker: WorkerSpec) -> list[str]:
    cloud = _CLOUDS[spec.cloud]
    lines = [
        f"{worker.name}:",
        f"  min_workers: {worker.min_workers}",
        f"  max_workers: {worker.max_workers}",
    ]
    if _may_swap(spec, worker):
        most = worker.max_workers
        lines[-1] = f"  max_workers: {most + 1}  # {most}, and one that takes another one's place"
    if spec.provider == "ray" and len(spec.workers) > 1:
        lines.append(f"  priority: {10 if worker.purchase == 'spot' else 0}")
    if resources := cloud.resources(worker):
        lines.append(f"  resources: {flow(resources)}")
    return [
        *lines,
        *_labels(spec, worker),
        "  node_config:",
        *indent(cloud.worker(spec, worker), 4),
    ]


def _labels(spec: ClusterSpec, worker: WorkerSpec | None) -> list[str]:
    """Only where Ray's own provider launches: ours labels a node with what it came to be."""
    if spec.provider == "spotray":
        return []
    kind = "on-demand" if worker is None else worker.purchase
    return [f"  labels: {flow({'ray.io/market-type': kind})}"]


def _files(spec: ClusterSpec) -> list[str]:
    lines = []
    if _is_checkout(spec.package):
        folder = spec.package.rstrip("/")
        home = _checkout_home(spec)
        lines += ["file_mounts:"]
        for name in ("pyproject.toml", "constraints.txt", "LICENSE", "spotray"):
            lines.append(f"  {home}/{name}: {scalar(f'{folder}/{name}')}")
        lines += ['rsync_exclude: ["**/__pycache__"]']
    return [
        *lines,
        "# The head makes a token of its own, and the workers get it from there: nobody else can",
        "# talk to Ray. `ray submit`, `exec` and `dashboard` go over SSH and need none.",
        f"cluster_synced_files: [/home/{spec.ssh_user}/.ray/auth_token]",
    ]


def _setup(spec: ClusterSpec) -> list[str]:
    uv = "~/.local/bin/uv"
    names = "\n".join(f"'{name}={value}'" for name, value in environment(spec).items())
    head_packages = _CLOUDS[spec.cloud].HEAD_PACKAGES if spec.provider == "ray" else ()
    return [
        "# Ray runs these twice on workers: each leaves alone what is there already.",
        "setup_commands:",
        *indent(
            [
                *_kept(spec),
                *command(
                    f"test -x {uv} || curl -LsSf https://astral.sh/uv/{UV_VERSION}/install.sh | sh",
                    "The same Python everywhere, whatever the image has.",
                ),
                *command(
                    f"test -x ~/venv/bin/python || {uv} venv --python {PYTHON_VERSION} ~/venv"
                ),
                *command(
                    f"{uv} pip install --python ~/venv --torch-backend=auto\n"
                    + _requirements(spec),
                    "torch for the GPU's driver, or for the CPU where there is none.",
                ),
                *_whole(spec),
                *command(
                    f"printf 'export %s\\n'\n{names}\n> ~/.spotray_environment",
                    "How soon a lost node is noticed; where the facts about nodes go.",
                ),
                *command(
                    "grep -q spotray_environment ~/.bashrc"
                    " || echo '. ~/.spotray_environment' >> ~/.bashrc"
                ),
            ],
            2,
        ),
        "head_setup_commands:",
        *indent(
            [
                *(
                    command(f"{uv} pip install --python ~/venv {' '.join(head_packages)}")
                    if head_packages
                    else []
                ),
                *command("ray get-auth-token --generate > /dev/null"),
                *command(
                    f"python -c 'import {_imported(spec)}'",
                    "Ray would say that all is well, and then launch nothing, without it.",
                ),
            ],
            2,
        ),
        "worker_setup_commands: []",
    ]


# What uv makes: the environment, its cache of wheels, its Python.
_KEPT = ("venv", ".cache/uv", ".local/share/uv")


def _kept(spec: ClusterSpec) -> list[str]:
    """Where there is a data disk: put there what takes long to install."""
    home = _kept_home(spec)
    if not home:
        return []
    return command(
        f"! mountpoint -q {home.parent} || {{ test -e {home}/whole || rm -rf {home};\n"
        f"rm -f {home}/whole; for one in {' '.join(_KEPT)};\n"
        f"do mkdir -p {home}/$one ~/$(dirname $one);\n"
        f"test -e ~/$one || ln -sfn {home}/$one ~/$one; done; }}",
        "On the data disk, where there is one: the next node finds all installed. What a node\n"
        "left unfinished is thrown away.",
    )


def _whole(spec: ClusterSpec) -> list[str]:
    """The mark that nothing on the data disk is unfinished."""
    home = _kept_home(spec)
    if not home:
        return []
    return command(f"! mountpoint -q {home.parent} || {{ sync -f {home} && touch {home}/whole; }}")


def _kept_home(spec: ClusterSpec) -> PurePosixPath | None:
    mounts = [one.mount for one in spec.workers if one.data_disk_gb]
    return PurePosixPath(mounts[0]) / "env" if mounts else None


def _start(spec: ClusterSpec) -> list[str]:
    controller = [
        *command("pkill -f 'spotray[.]controller' || true"),
        *command(
            _kept_alive(controller_command(spec), "controller"),
            _WHAT_FOR[spec.provider] + "; started anew if it dies, as it does with Ray.",
        ),
    ]
    return [
        "head_start_ray_commands:",
        "  - ray stop",
        f"  - ulimit -n 65536; {_HEAD_STARTS} ray start --head --port=6379"
        " --autoscaling-config=~/ray_bootstrap_config.yaml",
        *indent(controller, 2),
        "worker_start_ray_commands:",
        *indent(
            [
                "- ray stop",
                *command(
                    "pkill -f 'spotray[.]agent' || true",
                    "The agent belongs to one start of Ray.",
                ),
                f"- ulimit -n 65536; ray start --address={_HEAD}",
                *command(
                    _kept_alive(agent_command(spec), "agent"),
                    "Hears the cloud's notice and drains the node; started anew if it dies.",
                ),
            ],
            2,
        ),
    ]


def _kept_alive(program: str, name: str) -> str:
    """Start a program that outlives the shell, and anew until it ends in order."""
    return (
        f"nohup setsid bash -c 'until {program}\n--journal $SPOTRAY_JOURNAL;\n"
        "do [ $? = 2 ] && break; sleep 2; done'\n"
        f">> ~/spotray-{name}.log 2>&1 < /dev/null &"
    )


def _requirements(spec: ClusterSpec) -> str:
    ray = f"'ray[default]=={RAY_VERSION}'"
    if _is_checkout(spec.package):
        home = _checkout_home(spec)
        return f"-c {home}/constraints.txt {ray} -e '{home}{_EXTRA[spec.cloud]}'"
    return f"{ray} {shlex.quote(spec.package)}"


def _imported(spec: ClusterSpec) -> str:
    if spec.provider == "spotray":
        return f"spotray.cluster.{spec.cloud}"
    return "spotray"


def _is_checkout(package: str) -> bool:
    return package.startswith((".", "/", "~"))


def _checkout_home(spec: ClusterSpec) -> str:
    return f"/home/{spec.ssh_user}/spotray"
