"""Experiment trackers: what each of them must do, and which there are."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from spotray.errors import ConfigError
from spotray.storage import Store
from spotray.track.facts import Note, Point

# Each with the module that it needs, and how that is installed.
_NEEDS = {
    "tensorboard": ("tensorboardX", "tensorboardX"),
    "mlflow": ("mlflow", "'spotray[mlflow]'"),
    "wandb": ("wandb", "'spotray[wandb]'"),
}
TRACKERS = tuple(_NEEDS)
NAMESPACE = "spotray"  # the project or experiment, where the user names none


@dataclass(frozen=True, kw_only=True)
class RunAbout:
    """What is known of a run before it begins; the same at each of its starts."""

    run_id: str  # of all starts
    name: str
    url: str  # its folder
    config: Mapping[str, Any] = field(default_factory=dict)  # the training loop's
    labels: Mapping[str, str] = field(default_factory=dict)


class Tracker(Protocol):
    """One run in one tracker, whatever the number of its starts.

    Any method may raise whatever the tracker's library does: it is called again later.
    """

    name: str

    def begin(self) -> str:
        """Find the run, or make it; where people look at it."""
        ...

    def tell(self, points: Sequence[Point], notes: Sequence[Note], *, rows: int) -> None:
        """Write these; of each series the steps go up, also from start to start.

        Args:
            points: in the order in which they are to be written.
            notes: by time.
            rows: points and notes that were written before, at all starts.
        """
        ...

    def end(self, status: str) -> None:
        """The job ended: finished, failed or interrupted. Return when all is written."""
        ...


def check_names(names: object) -> tuple[str, ...]:
    """The trackers' names, one given as a plain word too.

    Raises:
        ConfigError: one is no tracker's, or stands there twice.
    """
    given = (names,) if isinstance(names, str) else names
    if not isinstance(given, tuple | list):
        raise ConfigError(
            f'tracking must be a name or a tuple of names, got {names!r}: give "wandb"'
        )
    for name in given:
        if name not in TRACKERS:
            near = difflib.get_close_matches(str(name).lower(), TRACKERS, n=1)
            meant = f"did you mean {near[0]!r}?" if near else "leave it out for none of them: ()"
            raise ConfigError(
                f"tracking has {name!r}, which is none of {', '.join(TRACKERS)}: {meant}"
            )
    if len(set(given)) < len(given):
        raise ConfigError(f"tracking names a tracker twice: {', '.join(given)}")
    return tuple(given)


def check_installed(names: Sequence[str]) -> None:
    """Refuse trackers whose library is not there, before anything is started for them.

    Raises:
        ConfigError: one line with the cure.
    """
    for name in names:
        module, package = _NEEDS[name]
        found = importlib.util.find_spec(module)
        # A mere folder of that name, as Weights & Biases leaves one behind, is no library.
        if found is None or found.origin is None:
            raise ConfigError(
                f"tracking={name!r} needs {module}, which is not installed: "
                f"pip install {package}, or leave it out of SpotConfig(tracking=)"
            )


def tracker(name: str, about: RunAbout, *, run_dir: Store) -> Tracker:
    """The tracker of that name. Its library is imported; nothing is asked or written yet.

    Raises:
        ConfigError: there is no such library, or it has no way to its server.
    """
    check_installed((name,))
    if name == "mlflow":
        from spotray.track.mlflow import MlflowTracker

        return MlflowTracker(about)
    if name == "wandb":
        from spotray.track.wandb import WandbTracker

        return WandbTracker(about)
    from spotray.track.tensorboard import TensorBoardTracker

    return TensorBoardTracker(about, run_dir=run_dir)


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A training loop's config as one level of names and plain values.

    >>> flat({"lr": 0.1, "model": {"layers": 2}})
    {'lr': 0.1, 'model.layers': 2}
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": one for inner, one in flat(value).items()}
        elif value is None or isinstance(value, bool | int | float | str):
            found[str(name)] = value
        else:
            found[str(name)] = repr(value)[:200]
    return found
