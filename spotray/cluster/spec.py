"""`ClusterSpec`: what a cluster shall be, in a dozen typed fields, and as TOML.

What Ray needs beyond it is the same for every cluster and stands in `spotray.cluster.render`.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from spotray.cluster.disks.config import MOUNT, check_data_disk
from spotray.cluster.problems import Problem, unknown_key
from spotray.errors import ConfigError
from spotray.market import catalog

_NAME = re.compile(r"[a-z][a-z0-9-]{0,38}[a-z0-9]")
_STORAGE = re.compile(r"(s3|gs|abfs|abfss)://[^/\s'\"]+[^\s'\"]*")
_ZONE = {"aws": "{region}[a-z]", "gcp": "{region}-[a-z]", "azure": "[123]"}
_EXAMPLE_ZONES = {"aws": "{region}a", "gcp": "{region}-a", "azure": "1"}
_EXAMPLE_STORAGE = {"aws": "s3://", "gcp": "gs://", "azure": "abfs://"}


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """The node with Ray's head, the autoscaler and the driver: never spot, no GPU."""

    instance_type: str
    disk_gib: int = 100
    image: str = ""  # empty: a plain Ubuntu
    security_group_id: str = ""  # AWS; beside workers with an EFA that of theirs


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """A pool of workers that are the same to Ray."""

    name: str  # the node type in Ray's words
    instance_types: tuple[str, ...]  # equally good; the first is what Ray counts with
    purchase: Literal["spot", "on-demand"] = "spot"
    fallback: Literal["on-demand", "wait"] = "on-demand"  # when spot is out
    min_workers: int = 0  # held also without a job
    max_workers: int = 4
    disk_gib: int = 150
    data_disk_gb: int = 0  # a disk that outlives the node, for data and environment; 0: none
    data_disk_type: str = ""  # empty: gp3; on GCP pd-balanced
    mount: str = MOUNT  # where that is
    reuse: Literal["", "boot"] = ""  # GCP: "boot", spot nodes are stopped and started again
    image: str = ""  # empty: one with NVIDIA's driver
    accelerator: str = ""  # GCP's n1: "nvidia-tesla-t4"; one of them
    preemptible: bool = False  # GCP: the older kind of spot, 24 hours at most
    efa: bool = False  # AWS: an Elastic Fabric Adapter
    placement_group: str = ""  # AWS: all close together, in one zone
    subnet_id: str = ""  # AWS, with an EFA
    security_group_id: str = ""  # AWS, with an EFA


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """A cluster of an on-demand head and pools of GPU workers.

    It cannot exist in a wrong state: all that is wrong is told at once.

    Raises:
        ConfigError: a line for each problem, with its path and its cure.
    """

    name: str
    cloud: Literal["aws", "gcp", "azure"]
    region: str
    zones: tuple[str, ...]  # in the order of preference
    storage: str  # folder in a bucket for the journal of the cluster
    head: HeadSpec
    workers: tuple[WorkerSpec, ...]
    provider: Literal["spotray", "ray"] = "spotray"  # who chooses the market of a launch
    project: str = ""  # GCP
    resource_group: str = ""  # Azure
    package: str = "."  # what pip installs: a requirement, or the folder of a checkout
    idle_minutes: float = 10.0
    ssh_user: str = field(default="ubuntu")

    def __post_init__(self) -> None:
        if problems := list(_wrong(self)):
            raise ConfigError("\n".join(str(one) for one in problems))

    @property
    def max_workers(self) -> int:
        """Most workers of all pools together."""
        return sum(one.max_workers for one in self.workers)

    @classmethod
    def from_toml(cls, text: str) -> ClusterSpec:
        """The spec of a TOML document.

        Raises:
            ConfigError: a line for each problem: of the document, and of what it says.
        """
        spec, problems = read_toml(text)
        if spec is None:
            raise ConfigError("\n".join(str(one) for one in problems))
        return spec

    def to_toml(self) -> str:
        """A document that `from_toml` reads back; defaults are left out."""
        lines = list(_toml_lines(self, skip=("head", "workers")))
        lines += ["", "[head]", *_toml_lines(self.head)]
        for one in self.workers:
            lines += ["", f"[workers.{one.name}]", *_toml_lines(one, skip=("name",))]
        return "\n".join(lines) + "\n"


def read_toml(text: str) -> tuple[ClusterSpec | None, list[Problem]]:
    """The spec, or None and all that is wrong with it."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        return None, [Problem(path="(file)", what=f"is no TOML: {exc}", cure="correct that line")]
    problems: list[Problem] = []
    pools = raw.pop("workers", {})
    if not isinstance(pools, dict):
        problems.append(
            Problem(path="workers", what="is no table", cure="write [workers.NAME] for each pool")
        )
        pools = {}
    workers = tuple(
        _read(WorkerSpec, {**one, "name": name}, f"workers.{name}", problems)
        for name, one in pools.items()
        if _is_table(one, f"workers.{name}", problems)
    )
    head = raw.pop("head", {})
    head = head if _is_table(head, "head", problems) else {}
    parts = {"head": _read(HeadSpec, head, "head", problems), "workers": workers}
    spec = _read(ClusterSpec, raw, "", problems, given=parts)
    problems += _wrong(spec)
    return (None if problems else spec), problems


_T = TypeVar("_T")


def _read(
    cls: type[_T],
    raw: Mapping[str, Any],
    path: str,
    problems: list[Problem],
    *,
    given: Mapping[str, Any] | None = None,
) -> _T:
    """An instance, unchecked: a field that is wrong or missing has a neutral value."""
    hints = typing.get_type_hints(cls)
    given = given or {}
    instance = object.__new__(cls)
    readable = [f for f in dataclasses.fields(cls) if f.name not in given]  # type: ignore[arg-type]
    prefix = f"{path}." if path else ""
    names = [f.name for f in readable]
    shown = [name for name in names if not (path.startswith("workers.") and name == "name")]
    problems += [unknown_key(path, key, shown) for key in raw if key not in names]
    for one in readable:
        hint = hints[one.name]
        value: Any = _neutral(hint) if one.default is dataclasses.MISSING else one.default
        if one.name in raw:
            fits, read = _as(hint, raw[one.name])
            if fits:
                value = read
            else:
                problems.append(
                    Problem(
                        path=prefix + one.name,
                        what=f"is {_shown(raw[one.name])}",
                        cure=f"give {_words(hint)}",
                    )
                )
        elif one.default is dataclasses.MISSING:
            cure = f"give {_words(hint)}"
            problems.append(Problem(path=prefix + one.name, what="is missing", cure=cure))
        object.__setattr__(instance, one.name, value)
    for name, value in given.items():
        object.__setattr__(instance, name, value)
    return instance


def _is_table(value: object, path: str, problems: list[Problem]) -> bool:
    if isinstance(value, dict):
        return True
    problems.append(Problem(path=path, what="is no table", cure=f"write [{path}]"))
    return False


def _as(hint: Any, value: Any) -> tuple[bool, Any]:
    """Whether a value of TOML fits a field, and the field's value."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return value in typing.get_args(hint), value
    if origin is tuple:
        fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return fits, tuple(value) if fits else ()
    if hint is float and type(value) is int:
        return True, float(value)
    return type(value) is hint, value


def _neutral(hint: Any) -> Any:
    """A value that gives rise to no problem beside that of its being wrong."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return typing.get_args(hint)[0]
    return () if origin is tuple else hint()


def _words(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return " or ".join(json.dumps(one) for one in typing.get_args(hint))
    if origin is tuple:
        return 'a list such as ["a", "b"]'
    names: dict[Any, str] = {str: "a text", int: "a whole number", float: "a number"}
    return names.get(hint, "true or false")


def _shown(value: object) -> str:
    return repr(value)[:60]


def _toml_lines(instance: Any, *, skip: tuple[str, ...] = ()) -> Iterator[str]:
    for one in dataclasses.fields(instance):
        value = getattr(instance, one.name)
        if one.name in skip or value == one.default:
            continue
        # JSON's strings, numbers, booleans and lists of strings are TOML's too.
        yield f"{one.name} = {json.dumps(list(value) if isinstance(value, tuple) else value)}"


# -- what can be wrong --------------------------------------------------------


def _wrong(spec: ClusterSpec) -> Iterator[Problem]:
    """All that is wrong. An empty text or tuple is a field that was told of before."""
    for part, path in _parts(spec):
        yield from _wrong_literals(part, path)
    if spec.name and not _NAME.fullmatch(spec.name):
        cure = "use 2 to 40 lower-case letters, digits and '-', a letter first"
        yield Problem(path="name", what=f"is {_shown(spec.name)}", cure=cure)
    if spec.storage and not _STORAGE.fullmatch(spec.storage):
        yield Problem(
            path="storage",
            what=f"{_shown(spec.storage)} is not a folder in a bucket",
            cure=f"write {_EXAMPLE_STORAGE.get(spec.cloud, 's3://')}BUCKET/PATH",
        )
    if not 0 < spec.idle_minutes < float("inf"):
        yield Problem(
            path="idle_minutes", what=f"is {spec.idle_minutes}", cure="give minutes above 0"
        )
    yield from _wrong_zones(spec)
    yield from _wrong_provider(spec)
    yield from _wrong_head(spec)
    if not spec.workers:
        yield Problem(path="workers", what="there are none", cure="add a table [workers.gpu]")
    mounts = {one.mount for one in spec.workers if one.data_disk_gb}
    if len(mounts) > 1:
        cure = "mount all data disks in one place: the setup commands are the same for all pools"
        yield Problem(path="workers", what=f"have {' and '.join(sorted(mounts))}", cure=cure)
    names = [one.name for one in spec.workers]
    for name in sorted({one for one in names if names.count(one) > 1 or one == "head"}):
        yield Problem(path=f"workers.{name}", what="is taken", cure="give it another name")
    for worker in spec.workers:
        yield from _wrong_worker(worker, spec, f"workers.{worker.name}")


def _parts(spec: ClusterSpec) -> Iterator[tuple[object, str]]:
    yield spec, ""
    yield spec.head, "head."
    for worker in spec.workers:
        yield worker, f"workers.{worker.name}."


def _wrong_literals(instance: object, path: str) -> Iterator[Problem]:
    """A constructor takes any text where the types allow a few words only."""
    for name, hint in typing.get_type_hints(type(instance)).items():
        choices = typing.get_args(hint)
        if typing.get_origin(hint) is Literal and getattr(instance, name) not in choices:
            value = getattr(instance, name)
            cure = f"give {_words(hint)}"
            yield Problem(path=path + name, what=f"is {_shown(value)}", cure=cure)


def _wrong_zones(spec: ClusterSpec) -> Iterator[Problem]:
    if not spec.region or spec.cloud not in _ZONE:
        return
    example = _EXAMPLE_ZONES[spec.cloud].format(region=spec.region)
    if not spec.zones:
        yield Problem(path="zones", what="there are none", cure=f'name some, as ["{example}"]')
    pattern = _ZONE[spec.cloud].format(region=re.escape(spec.region))
    for zone in spec.zones:
        if not re.fullmatch(pattern, zone):
            yield Problem(
                path="zones",
                what=f"{zone} is not a zone of {spec.region}",
                cure=f"write zones as {example}",
            )
    if len(set(spec.zones)) < len(spec.zones):
        yield Problem(path="zones", what="one comes twice", cure="name each once")


def _wrong_provider(spec: ClusterSpec) -> Iterator[Problem]:
    if spec.cloud == "gcp" and not spec.project:
        yield Problem(path="project", what="is missing", cure="give the id of your GCP project")
    if spec.cloud == "azure" and not spec.resource_group:
        yield Problem(path="resource_group", what="is missing", cure="name one; Ray creates it")
    if spec.cloud == "azure" and spec.provider == "spotray":
        yield Problem(
            path="provider",
            what="there is no choice of the market on Azure",
            cure='write provider = "ray"',
        )
    if spec.cloud == "gcp" and spec.provider == "ray" and len(spec.zones) > 1:
        yield Problem(
            path="zones",
            what="Ray's own provider for GCP works in one zone",
            cure='name one, or write provider = "spotray"',
        )


def _wrong_head(spec: ClusterSpec) -> Iterator[Problem]:
    known = catalog.find(spec.cloud, spec.head.instance_type)
    if known is not None and known.gpus:
        yield Problem(
            path="head.instance_type",
            what=f"{known.name} has a GPU that no worker will use",
            cure="take one without; the head trains nothing",
        )
    yield from _wrong_sizes("head.disk_gib", spec.head.disk_gib)


def _wrong_sizes(path: str, gib: int) -> Iterator[Problem]:
    if gib < 50:
        yield Problem(path=path, what=f"is {gib}", cure="Ray and torch need 50 at least")


def _wrong_worker(worker: WorkerSpec, spec: ClusterSpec, path: str) -> Iterator[Problem]:
    if not _NAME.fullmatch(worker.name):
        cure = "use 2 to 40 lower-case letters, digits and '-', a letter first"
        yield Problem(path=path, what="is no good name", cure=cure)
    if not 0 <= worker.min_workers <= worker.max_workers or worker.max_workers < 1:
        yield Problem(
            path=f"{path}.min_workers",
            what=f"min_workers {worker.min_workers} and max_workers {worker.max_workers}",
            cure="need 0 <= min_workers <= max_workers, and 1 <= max_workers",
        )
    if spec.provider == "ray" and len(worker.instance_types) > 1:
        yield Problem(
            path=f"{path}.instance_types",
            what="Ray's own provider launches one type per pool",
            cure='name one, or write provider = "spotray"',
        )
    yield from _wrong_sizes(f"{path}.disk_gib", worker.disk_gib)
    yield from _wrong_types(worker, spec, f"{path}.instance_types")
    if worker.data_disk_gb:
        yield from _wrong_data_disk(worker, spec, path)
    if worker.reuse and (spec.cloud, spec.provider, worker.purchase) != ("gcp", "spotray", "spot"):
        what = "is for spot nodes on GCP that spotray's provider launches"
        yield Problem(path=f"{path}.reuse", what=what, cure="leave it out")
    if spec.cloud != "aws" and (worker.efa or worker.placement_group):
        yield Problem(path=f"{path}.efa", what=f"{spec.cloud} has no EFA", cure="leave it out")
    elif worker.efa or worker.placement_group:
        yield from _wrong_network(worker, spec, path)
    if worker.preemptible and (spec.cloud != "gcp" or worker.purchase != "spot"):
        yield Problem(
            path=f"{path}.preemptible", what="is a kind of spot of GCP", cure="leave it out"
        )
    if worker.preemptible and spec.provider == "spotray":
        yield Problem(
            path=f"{path}.preemptible",
            what="the choice of the market launches what GCP calls SPOT",
            cure='leave it out (the price is the same), or write provider = "ray"',
        )


def _wrong_data_disk(worker: WorkerSpec, spec: ClusterSpec, path: str) -> Iterator[Problem]:
    if spec.provider == "ray":
        cure = 'leave it out, or write provider = "spotray"'
        what = "Ray's own provider has no data disks"
        yield Problem(path=f"{path}.data_disk_gb", what=what, cure=cure)
        return
    names = {"size_gb": "data_disk_gb", "type": "data_disk_type", "mount": "mount"}
    for one in check_data_disk("", data_disk(worker), cloud=spec.cloud):
        where = f"{path}.{names[one.path.lstrip('.')]}"
        yield Problem(path=where, what=one.what, cure=one.cure)


def data_disk(worker: WorkerSpec) -> dict[str, Any]:
    """The pool's ``data_disk`` as it stands in the YAML."""
    kind = {"type": worker.data_disk_type} if worker.data_disk_type else {}
    return {"size_gb": worker.data_disk_gb, **kind, "mount": worker.mount}


def _wrong_types(worker: WorkerSpec, spec: ClusterSpec, path: str) -> Iterator[Problem]:
    if not worker.instance_types:
        yield Problem(path=path, what="there are none", cure="name one at least")
    gpus = {}
    for name in worker.instance_types:
        known = catalog.find(spec.cloud, name)
        if known is None:
            continue
        gpus[name] = known.gpus + (1 if worker.accelerator and not known.gpus else 0)
        if not gpus[name]:
            alike = "add accelerator = " if name.startswith("n1-") else "take one such as "
            example = {"aws": "g5.xlarge", "gcp": "g2-standard-4"}.get(
                spec.cloud, "Standard_NC4as_T4_v3"
            )
            example = '"nvidia-tesla-t4"' if name.startswith("n1-") else example
            yield Problem(path=path, what=f"{name} has no GPU", cure=alike + example)
        if worker.accelerator and known.gpus:
            cure = f"leave accelerator out: {name} has {known.gpus} {known.gpu}"
            yield Problem(path=path, what="would have two kinds of GPU", cure=cure)
    if len(set(gpus.values())) > 1:
        each = ", ".join(f"{name} {count}" for name, count in gpus.items())
        yield Problem(
            path=path,
            what=f"differ in their GPUs ({each}), but Ray counts with one number per pool",
            cure="make a pool of each",
        )


def _wrong_network(worker: WorkerSpec, spec: ClusterSpec, path: str) -> Iterator[Problem]:
    if len(spec.zones) > 1:
        yield Problem(
            path="zones",
            what=f"there are {len(spec.zones)}, and {worker.name} must be in one",
            cure="name one: neither an EFA nor a cluster placement group spans two",
        )
    if not worker.efa:
        return
    for name in worker.instance_types:
        known = catalog.find("aws", name)
        if known is not None and not known.efa:
            smallest = catalog.smallest_with_efa(known.gpu)
            cure = f"take {smallest.name} or larger" if smallest else "take another type"
            yield Problem(path=f"{path}.instance_types", what=f"{name} has no EFA", cure=cure)
    for name in ("subnet_id", "security_group_id"):
        if not getattr(worker, name):
            yield Problem(
                path=f"{path}.{name}",
                what="is missing: an interface with an EFA names it",
                cure="give its id; the group must let all through to and from itself",
            )
