"""Is a cluster's YAML right? All that is wrong, with its place and its cure.

Three looks offline: our own lint, Ray's schema, and for EC2 a rehearsal of ``ray up`` on an
emulated account, where moto is installed (``pip install 'spotray[dev]'``). A fourth, if
asked for, at the account itself: see `spotray.cluster.preflight`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from spotray.cluster.lint import lint
from spotray.cluster.node_types import cloud_of, mapping, node_types
from spotray.cluster.preflight import check
from spotray.cluster.problems import Problem, unknown_key
from spotray.cluster.ray_autoscaler.azure import parameter_errors, parameters
from spotray.cluster.ray_autoscaler.rehearsal import Rehearsal, is_possible, rehearse
from spotray.cluster.ray_autoscaler.schema import schema_errors

_UNKNOWN = re.compile(r"Unknown parameter in ([\w.\[\]]+): \"(\w+)\", must be one of: ([\w, ]+)")
_SHOWN = 300  # characters of a message of somebody else's


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of one file."""

    file: str
    problems: Sequence[Problem] = ()
    launched: Mapping[str, str] = field(default_factory=dict)  # node type -> market, rehearsed
    not_done: str = ""  # which look could not be taken, and why

    @property
    def is_wrong(self) -> bool:
        """Whether there is more than warnings."""
        return any(not one.is_warning for one in self.problems)


def validate(
    files: Mapping[str, str],
    *,
    rehearsal: bool = True,
    online: bool = False,
    write_probe: bool = False,
) -> list[Verdict]:
    """Look at files, by name, and say all that is wrong with each.

    Args:
        files: their text.
        rehearsal: whether to rehearse ``ray up`` too, where it is possible; seconds each.
        online: whether to ask the cloud about those that are right offline.
        write_probe: whether to write a small object into each bucket then, and delete it.
    """
    configs = {file: _read(text) for file, text in files.items()}
    good = {file: one for file, one in configs.items() if not isinstance(one, Problem)}
    found = {file: _look(one) for file, one in good.items()}
    left_out = {file: _why_not(one) for file, one in good.items()}
    if not rehearsal:
        left_out = dict.fromkeys(good, "ray up was not rehearsed (--quick)")
    to_do = {file: one for file, one in good.items() if not left_out[file]}
    rehearsed = _rehearsed(to_do)
    verdicts = []
    for file, config in configs.items():
        if isinstance(config, Problem):
            verdicts.append(Verdict(file=file, problems=[config]))
            continue
        problems = found[file]
        outcome = rehearsed.get(file, Rehearsal())
        new = [one for one in _of_rehearsal(outcome) if str(one) not in map(str, problems)]
        said = [one for one in problems if not one.is_warning]
        # What Ray trips over is mostly what was named already, in other words.
        verdict = Verdict(
            file=file,
            problems=[*([] if said else new), *problems],
            launched=outcome.launched,
            not_done=left_out[file],
        )
        verdicts.append(_asked(verdict, config, write_probe=write_probe) if online else verdict)
    return verdicts


def _asked(verdict: Verdict, config: Mapping[str, Any], *, write_probe: bool) -> Verdict:
    """The verdict with what the cloud says as well."""
    if verdict.is_wrong:
        # A wrong file is mostly asked about in vain, and its questions may make no sense.
        what = "the cloud was not asked about it"
        cloud = [Problem(path="(file)", what=what, cure="correct the rest first", is_warning=True)]
    else:
        cloud = check(config, write_probe=write_probe)
    told = [*verdict.problems, *cloud]
    return replace(verdict, problems=sorted(told, key=lambda one: one.is_warning))


def _rehearsed(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Rehearsal]:
    if not configs:
        return {}
    try:
        outcomes = rehearse(list(configs.values()))
    except RuntimeError as exc:  # what was not looked at must not pass for right
        outcomes = [Rehearsal(failed_at="rehearsal", why=str(exc))] * len(configs)
    return dict(zip(configs, outcomes, strict=True))


def _read(text: str) -> dict[str, Any] | Problem:
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        what = f"is no YAML: {' '.join(str(exc).split())[:_SHOWN]}"
        return Problem(path="(file)", what=what, cure="correct that line")
    if not isinstance(config, dict):
        return Problem(path="(file)", what="is no map", cure="see cluster-configs/ for examples")
    return config


def _look(config: Mapping[str, Any]) -> list[Problem]:
    import ray

    problems = list(_of_schema(config))
    problems += lint(config, ray_version=ray.__version__)
    problems += _of_azure(config)
    unique = {(one.path, one.what): one for one in problems}
    return sorted(unique.values(), key=lambda one: one.is_warning)


def _of_schema(config: Mapping[str, Any]) -> Iterator[Problem]:
    for path, rule, message, known in schema_errors(config):
        if rule == "additionalProperties":
            parent, _, key = path.rpartition(".")
            yield unknown_key(parent, key, known)
        else:
            yield Problem(path=path, what=message, cure="write what Ray's schema allows")


def _of_azure(config: Mapping[str, Any]) -> Iterator[Problem]:
    """What Azure would refuse of the nodes, as far as Ray's template tells."""
    for one in node_types(config):
        if one.cloud != "azure":
            continue
        path = f"{one.path}.node_config.azure_arm_parameters"
        for key, what in parameter_errors(mapping(one.config, "azure_arm_parameters")):
            if what:
                yield Problem(path=f"{path}.{key}", what=what, cure="write such a one")
            else:
                yield unknown_key(path, key, parameters())


def _why_not(config: Mapping[str, Any]) -> str:
    """Why ``ray up`` cannot be rehearsed; empty if it can."""
    if cloud_of(config) == "azure":
        return (
            "`ray up` can be rehearsed for EC2 only: the nodes' parameters were compared with "
            "those that Ray passes on to Azure"
        )
    if cloud_of(config) != "aws":
        return "`ray up` can be rehearsed for EC2 only"
    if not is_possible():
        return "`ray up` was not rehearsed: moto is not installed (pip install 'spotray[dev]')"
    return ""


def _of_rehearsal(outcome: Rehearsal) -> Iterator[Problem]:
    at, why = outcome.failed_at, outcome.why
    if not at:
        return
    places = {
        "rehearsal": "(file)",
        "defaults": "(file)",
        "schema": "(file)",
        "bootstrap": "provider",
        "zones": "provider.availability_zone",
    }
    path = places.get(at, f"available_node_types.{at}.node_config")
    unknown = list(_UNKNOWN.finditer(why))
    for where, key, known in (match.groups() for match in unknown):
        inside = "" if where == "input" else f".{where}"
        yield unknown_key(f"{path}{inside}", key, known.split(", "))
    if not unknown:
        cures = {
            "rehearsal": "leave it out by --quick, and tell the project what broke",
            "zones": "name zones that exist",
            "bootstrap": "that is what `ray up` would say: correct it",
        }
        yield Problem(
            path=path,
            what=why[:_SHOWN],
            cure=cures.get(at, "that is what `ray up` would say: correct the entry"),
        )
