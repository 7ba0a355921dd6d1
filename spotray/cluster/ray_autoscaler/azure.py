"""What Ray's provider for Azure passes on for a node, compared with its template, offline.

Leans on these private parts: that ``azure_arm_parameters`` become the parameters of Ray's
``azure-vm-template.json``, which Azure refuses as a whole if it does not know one of them,
and that Ray itself gives those in `_OF_RAY`. Reads the file only: no Azure package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

_OF_RAY = frozenset(
    (
        "vmName",
        "adminUsername",
        "publicKey",
        "vmTags",
        "vmCount",
        "provisionPublicIp",
        "msi",
        "nsg",
        "subnet",
        "zones",
    )
)
_ZONE = "availability_zone"  # which Ray takes out again
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "int": (int,),
    "bool": (bool,),
    "object": (dict,),
    "array": (list,),
}


def parameters() -> dict[str, str]:
    """What a config may give a node, and of which of Azure's types each is."""
    folder = files("ray.autoscaler").joinpath("_private").joinpath("_azure")
    template = json.loads(folder.joinpath("azure-vm-template.json").read_text("utf-8"))
    known = {name: str(one["type"]) for name, one in template["parameters"].items()}
    return {name: kind for name, kind in known.items() if name not in _OF_RAY} | {_ZONE: "string"}


def parameter_errors(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What Azure would refuse of a node's parameters: the key, and what is wrong.

    The second is empty where Ray's template has no such parameter.
    """
    known = parameters()
    for key, value in given.items():
        if key not in known:
            yield str(key), ""
            continue
        types = _TYPES.get(known[key], ())
        is_other_bool = isinstance(value, bool) and bool not in types  # to Python also an int
        if key != _ZONE and types and (is_other_bool or not isinstance(value, types)):
            yield key, f"{value!r} is no {known[key]}"
