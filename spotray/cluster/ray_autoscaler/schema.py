"""Ray's schema of a cluster's YAML, asked for all that it does not allow at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any


def schema_errors(config: Mapping[str, Any]) -> Iterator[tuple[str, str, str, list[str]]]:
    """What Ray's schema refuses: path, its rule, its message, and the keys that it knows.

    A node type's ``resources`` may be missing: Ray fills them in before it looks.
    """
    import jsonschema  # type: ignore[import-untyped]

    schema = json.loads(files("ray.autoscaler").joinpath("ray-schema.json").read_text("utf-8"))
    for error in jsonschema.Draft7Validator(schema).iter_errors(config):
        path = _path(error.absolute_path)
        if error.validator == "required" and "'resources'" in error.message:
            continue
        known = sorted(error.schema.get("properties", {}))
        if error.validator == "additionalProperties":
            for key in error.instance:
                if key not in known:
                    yield f"{path}.{key}".lstrip("."), error.validator, error.message, known
        else:
            yield path or "(file)", error.validator, error.message[:200], known


def _path(parts: Any) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")
