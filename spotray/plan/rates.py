"""How fast a node trains: what `spotray bench-node` measured, kept for `spotray plan`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spotray.errors import ConfigError
from spotray.folders import user_folder, write_whole

_FILE = "rates.json"


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Samples per second of a model on one machine, with all its GPUs."""

    model: str
    cloud: str  # empty: a machine of no cloud
    instance_type: str  # or the name that its owner gave it
    gpu: str  # empty: trained on the CPU
    gpus: int
    samples_per_s: float  # in the middle of the rounds
    low_samples_per_s: float  # the slowest tenth
    high_samples_per_s: float
    at: str  # when, as ISO 8601

    def __post_init__(self) -> None:
        if not 0 < self.samples_per_s < math.inf:
            raise ConfigError(
                f"{self.model} on {self.instance_type}: {self.samples_per_s} samples/s: a rate "
                "is above 0"
            )


def rates_file() -> Path:
    """Where rates are kept."""
    return user_folder("data") / _FILE


def load_rates(file: Path) -> list[Rate]:
    """All that were kept, the latest last; none if there is no such file.

    Raises:
        ConfigError: it cannot be read, or has another shape.
    """
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        return [Rate(**one) for one in told["rates"]]
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise ConfigError(f"cannot read {file}: {exc.strerror or exc}") from exc
    except (ValueError, TypeError, KeyError) as exc:
        raise ConfigError(
            f"{file} is not what `spotray bench-node` writes: {exc}: delete it, and measure again"
        ) from exc


def keep_rate(rate: Rate, file: Path) -> None:
    """Add a rate; one of the same model and machine is replaced.

    Raises:
        ConfigError: the file is another's, or cannot be written.
    """
    same = (rate.model, rate.cloud, rate.instance_type)
    kept = [
        one for one in load_rates(file) if (one.model, one.cloud, one.instance_type) != same
    ] + [rate]
    text = json.dumps({"rates": [dataclasses.asdict(one) for one in kept]}, indent=1)
    try:
        write_whole(file, text)
    except OSError as exc:
        raise ConfigError(f"cannot write {file}: {exc.strerror or exc}") from exc


def of_model(rates: Iterable[Rate], model: str = "") -> dict[tuple[str, str], Rate]:
    """The rates of one model by cloud and instance type; without a name, of the latest one.

    Raises:
        ConfigError: no rate of that model was kept; the message says of which there are some.
    """
    kept = list(rates)
    if not kept and not model:
        return {}
    wanted = model or kept[-1].model
    found = {(one.cloud, one.instance_type): one for one in kept if one.model == wanted}
    if not found:
        there = ", ".join(sorted({one.model for one in kept})) or "none"
        raise ConfigError(
            f"no rate of {wanted} was measured (there are: {there}): run `spotray bench-node "
            f"--model {wanted}` on a node, or give --samples-per-s"
        )
    return found
