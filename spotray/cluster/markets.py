"""The keys that spotray's node providers add to ``provider:`` of a cluster's YAML.

::

    provider:
      type: external
      module: spotray.cluster.aws.SpotNodeProvider
      region: us-west-2
      availability_zone: us-west-2a,us-west-2b
      markets:                      # a worker type that is not named takes the defaults
        gpu_worker:
          instance_types: [g5.xlarge, g6.xlarge]   # default: the one of node_config
          spot: true                # default; false: on-demand only
          fallback: on-demand       # default; wait: never on-demand
          reuse: boot               # GCP: spot nodes are stopped, and started again
          data_disk: {size_gb: 200} # default: none; see `spotray.cluster.disks.config`
          on_demand_floor: 1        # default 0: so many are on-demand, and stay so
      launch_memory: ~/.spotray/launches.jsonl     # default
      launch_policy: {name: spot-first, cooldown_s: 120}     # or expected-cost, which learns,
                                    # also of earlier clusters: book: s3://BUCKET/hazards
      controller: {return_to_spot: true}           # see `spotray.cluster.control`

Every key is checked, all problems at once. No Ray and no cloud in here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spotray.cluster.control import ControlConfig, check_control, parse_control
from spotray.cluster.disks.config import DataDisk, check_data_disk
from spotray.cluster.launch_book import LearnedCost
from spotray.cluster.problems import Problem, unknown_key
from spotray.errors import ConfigError
from spotray.market.offer import Market
from spotray.policy.decision import LaunchPolicy
from spotray.policy.expected_cost import ExpectedCost, ExpectedCostConfig
from spotray.policy.guarded import GuardConfig
from spotray.policy.spot_first import SpotFirst, SpotFirstConfig

OUR_KEYS = ("markets", "launch_memory", "launch_policy", "controller")
DEFAULT_MEMORY = "~/.spotray/launches.jsonl"
FALLBACKS = ("on-demand", "wait")
_Config = TypeVar("_Config", bound=GuardConfig)

RAY_KEYS = (  # what Ray reads of any provider
    "type",
    "module",
    "use_internal_ips",
    "use_external_head_ip",
    "disable_launch_config_check",
    "disable_node_updaters",
    "foreground_node_launch",
    "worker_liveness_check",
    "worker_rpc_drain",
)
CLOUD_KEYS: Mapping[str, tuple[str, ...]] = {
    "aws": (
        "region",
        "availability_zone",
        "cache_stopped_nodes",
        "security_group",
        "key_pair",
        "aws_credentials",
        "cloudwatch",
    ),
    "gcp": (
        "region",
        "availability_zone",
        "project_id",
        "cache_stopped_nodes",
        "gcp_credentials",
    ),
}


@dataclass(frozen=True, kw_only=True)
class NodeMarkets:
    """Where the nodes of one worker type may come from."""

    instance_types: tuple[str, ...] = ()  # best first; empty: the one of node_config
    spot: bool = True  # false: on-demand only
    fallback: str = "on-demand"  # when spot is out; or "wait"
    data_disk: DataDisk | None = None  # that each node gets, and the next one after it
    reuse: str = ""  # GCP: "boot", spot nodes are stopped and started again with their disk
    on_demand_floor: int = 0  # launched on-demand while fewer are; never returned to spot

    def candidates(self, cloud: str, zones: tuple[str, ...], own_type: str) -> tuple[Market, ...]:
        """The markets, in the order of the config: spot before on-demand, type by type."""
        kinds = [True, False] if self.fallback == "on-demand" else [True]
        return tuple(
            Market(cloud=cloud, zone=zone, instance_type=instance_type, spot=spot)
            for spot in (kinds if self.spot else [False])
            for instance_type in self.instance_types or (own_type,)
            for zone in zones
        )


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """All that a node provider of ours reads for itself."""

    markets: Mapping[str, NodeMarkets] = field(default_factory=dict)
    memory: str = DEFAULT_MEMORY
    policy: LaunchPolicy = field(default_factory=SpotFirst)
    control: ControlConfig = field(default_factory=ControlConfig)

    @property
    def book(self) -> str:
        """The folder of the book that the policy reads; empty: it reads none."""
        return self.policy.book if isinstance(self.policy, LearnedCost) else ""

    @classmethod
    def parse(cls, provider: Mapping[str, Any], *, cloud: str) -> LaunchConfig:
        """The launch config of a YAML's ``provider:``.

        Raises:
            ConfigError: a key is unknown or a value wrong; all of them, one a line.
        """
        if problems := list(check_provider(provider, cloud=cloud)):
            raise ConfigError("\n".join(str(problem) for problem in problems))
        markets = {
            name: NodeMarkets(
                instance_types=tuple(given.get("instance_types", ())),
                spot=given.get("spot", True),
                fallback=given.get("fallback", "on-demand"),
                data_disk=DataDisk.of(given["data_disk"], cloud=cloud)
                if "data_disk" in given
                else None,
                reuse=given.get("reuse", ""),
                on_demand_floor=given.get("on_demand_floor", 0),
            )
            for name, given in (provider.get("markets") or {}).items()
        }
        return cls(
            markets=markets,
            memory=provider.get("launch_memory", DEFAULT_MEMORY),
            policy=_policy(provider.get("launch_policy") or {}),
            control=parse_control(provider.get("controller") or {}),
        )

    def of(self, node_type: str) -> NodeMarkets:
        """The markets of a worker type."""
        return self.markets.get(node_type, NodeMarkets())

    @property
    def data_disks(self) -> Mapping[str, DataDisk]:
        """By worker type; those without one are left out."""
        every = {name: one.data_disk for name, one in self.markets.items()}
        return {name: disk for name, disk in every.items() if disk is not None}


def check_provider(provider: Mapping[str, Any], *, cloud: str) -> Iterator[Problem]:
    """What is wrong in ``provider:`` by itself."""
    # `ray up` adds keys of its own, such as _config_cache_path, before it asks for a node.
    given = {key: value for key, value in provider.items() if not str(key).startswith("_")}
    yield from _unknown_keys("provider", given, (*RAY_KEYS, *CLOUD_KEYS[cloud], *OUR_KEYS))
    if provider.get("cache_stopped_nodes"):
        yield Problem(
            path="provider.cache_stopped_nodes",
            what="a stopped on-demand node would be started again without asking the policy",
            cure="set it to false, or leave it out: false is the default here",
        )
    memory = provider.get("launch_memory", DEFAULT_MEMORY)
    if not isinstance(memory, str) or not memory:
        yield Problem(
            path="provider.launch_memory", what=f"{memory!r} is no path", cure="name a local file"
        )
    markets = provider.get("markets") or {}
    if isinstance(markets, Mapping):
        for name, given in markets.items():
            yield from _check_markets(f"provider.markets.{name}", given, cloud)
    else:
        yield Problem(
            path="provider.markets",
            what=f"{markets!r} is no map",
            cure="write {NODE_TYPE: {instance_types: [...], fallback: on-demand}}",
        )
    policy = provider.get("launch_policy") or {}
    try:
        _policy(policy)
    except ConfigError as exc:
        what, _, cure = str(exc).partition(": ")
        yield Problem(path="provider.launch_policy", what=what, cure=cure)
    yield from check_control(provider.get("controller") or {})


def check_node_types(
    provider: Mapping[str, Any],
    node_types: Mapping[str, Any],
    *,
    head_node_type: str,
    own_type: Callable[[Mapping[str, Any]], Any] = lambda config: config.get("InstanceType"),
) -> Iterator[Problem]:
    """What is wrong between ``provider.markets`` and ``available_node_types``.

    ``own_type``: reads the instance type out of a ``node_config``.
    """
    markets = provider.get("markets") or {}
    for name, given in markets.items() if isinstance(markets, Mapping) else ():
        path = f"provider.markets.{name}"
        if name == head_node_type:
            yield Problem(
                path=path,
                what="that is the head, which is always on-demand",
                cure="name worker types only",
            )
        elif name not in node_types:
            workers = sorted(set(node_types) - {head_node_type})
            yield Problem(
                path=path, what="no such node type", cure=f"worker types: {', '.join(workers)}"
            )
        elif isinstance(given, Mapping) and given.get("instance_types"):
            own = own_type((node_types[name] or {}).get("node_config") or {})
            if own not in given["instance_types"]:
                yield Problem(
                    path=f"{path}.instance_types",
                    what=f"{own}, the type in node_config, is not among them",
                    cure="list it too, or write another one of the list in node_config",
                )


def _check_markets(path: str, given: Any, cloud: str) -> Iterator[Problem]:
    if not isinstance(given, Mapping):
        yield Problem(
            path=path, what=f"{given!r} is no map", cure="write {instance_types: [...], ...}"
        )
        return
    yield from _unknown_keys(path, given, (f.name for f in dataclasses.fields(NodeMarkets)))
    types = given.get("instance_types", [])
    if not isinstance(types, list) or not all(isinstance(one, str) and one for one in types):
        yield Problem(
            path=f"{path}.instance_types",
            what=f"{types!r} is no list of names",
            cure="write [g5.xlarge, g6.xlarge]",
        )
    elif len(set(types)) < len(types):
        yield Problem(
            path=f"{path}.instance_types", what="a type stands there twice", cure="name each once"
        )
    spot = given.get("spot", True)
    if not isinstance(spot, bool):
        yield Problem(path=f"{path}.spot", what=f"{spot!r}", cure="write true or false")
    elif not spot and "fallback" in given:
        yield Problem(
            path=f"{path}.fallback",
            what="there is nothing to fall back from with spot: false",
            cure="leave one of the two out",
        )
    if given.get("fallback", "on-demand") not in FALLBACKS:
        yield Problem(
            path=f"{path}.fallback",
            what=f"{given['fallback']!r}",
            cure=f"write one of {', '.join(FALLBACKS)}",
        )
    if "reuse" in given:
        yield from _check_reuse(path, given, cloud)
    if "data_disk" in given:
        yield from check_data_disk(f"{path}.data_disk", given["data_disk"], cloud=cloud)
    floor = given.get("on_demand_floor", 0)
    if isinstance(floor, bool) or not isinstance(floor, int) or floor < 0:
        yield Problem(
            path=f"{path}.on_demand_floor", what=f"{floor!r}", cure="write a whole number"
        )
    elif floor and given.get("fallback") == "wait":
        yield Problem(
            path=f"{path}.on_demand_floor",
            what="no node may be on-demand with fallback: wait",
            cure="leave one of the two out",
        )


def _check_reuse(path: str, given: Mapping[str, Any], cloud: str) -> Iterator[Problem]:
    path = f"{path}.reuse"
    if cloud != "gcp":
        cure = "leave it out, and take a data_disk"
        yield Problem(path=path, what="only GCP starts a spot node that it stopped", cure=cure)
    elif given["reuse"] != "boot":
        yield Problem(path=path, what=f"{given['reuse']!r}", cure="write boot, or leave it out")
    elif given.get("spot") is False:
        cure = "leave one of the two out"
        yield Problem(path=path, what="is about spot nodes, and spot is false", cure=cure)


def _unknown_keys(path: str, given: Mapping[str, Any], known: Iterable[str]) -> Iterator[Problem]:
    names = tuple(known)
    return (unknown_key(path, str(key), names) for key in given if key not in names)


def _spot_first(settings: Mapping[str, Any]) -> LaunchPolicy:
    return SpotFirst(_numbers(SpotFirstConfig, settings))


def _expected_cost(settings: Mapping[str, Any]) -> LaunchPolicy:
    numbers = {key: value for key, value in settings.items() if key != "book"}
    config = _numbers(ExpectedCostConfig, numbers, "book")
    if "book" not in settings:
        return ExpectedCost(config)
    book = settings["book"]
    if not isinstance(book, str) or not book:
        raise ConfigError(f"book {book!r} is no folder: write a path or a URL, s3://BUCKET/hazards")
    return LearnedCost(config, book)


def _numbers(cls: type[_Config], settings: Mapping[str, Any], *others: str) -> _Config:
    known = [f.name for f in dataclasses.fields(cls)]
    for problem in _unknown_keys("", settings, ("name", *known, *others)):
        raise ConfigError(f"{problem.path} {problem.what}: {problem.cure}")
    return cls(**settings)


POLICIES: Mapping[str, Callable[[Mapping[str, Any]], LaunchPolicy]] = {
    "spot-first": _spot_first,
    "expected-cost": _expected_cost,
}


def _policy(settings: Any) -> LaunchPolicy:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{settings!r} is no map: write {{name: spot-first, cooldown_s: 120}}")
    name = settings.get("name", "spot-first")
    make = POLICIES.get(name) if isinstance(name, str) else None
    if make is None:
        raise ConfigError(f"no policy {name!r}: write one of {', '.join(sorted(POLICIES))}")
    return make({key: value for key, value in settings.items() if key != "name"})
