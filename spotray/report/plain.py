"""Result objects as values that JSON knows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """A result object as dicts, lists, strings and finite numbers, its properties too."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        kinds = {name: kind for cls in type(value).__mro__ for name, kind in vars(cls).items()}
        derived = [name for name, kind in kinds.items() if isinstance(kind, property)]
        return fields | {name: plain(getattr(value, name)) for name in derived}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
