"""The folder of one trial's run: what is in it before anybody trains, and what it told so far."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotray.errors import CheckpointError, ConfigError
from spotray.events import CheckpointCommitted, Event, Reported, TrainingDone
from spotray.ledger.rundir import JOURNAL
from spotray.storage import Store
from spotray.tune.messages import Pointer, digest_of, run_of

TRIALS = "trials"  # below the sweep's folder
_ABOUT = "trial.json"


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the earlier lives of a run told."""

    reports: tuple[tuple[int, Mapping[str, Any]], ...] = ()  # (step, metrics), by step
    final: Mapping[str, Any] | None = None  # metrics of the end; None: it is not through
    checkpoint: str | None = None  # the one that ends it


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """A run of one trial; a trial that clones another one has one more."""

    trial: str
    name: str
    store: Store  # where the job keeps its files
    url: str  # of the run's folder
    base: int  # reports of the runs that it goes back to
    begins_from: str | None  # URL of their last checkpoint
    begins_at: int = 0  # steps in that
    config: Mapping[str, Any] = field(default_factory=dict)

    def told(self) -> Told:
        """Of the journal.

        Raises:
            JournalError: storage could not be read.
        """
        from spotray.ledger.journal import read_journal

        return told_by(read_journal(self.store.child(JOURNAL[-1])))


def open_run(
    home: Store, trial: str, config: Mapping[str, Any], pointer: Pointer | None
) -> RunFolder:
    """The run in which a trial goes on, made if there is none.

    Args:
        home: The sweep's folder.
        trial: The trial's id.
        config: Its hyperparameters.
        pointer: Where Tune last knew it, or whom it clones.

    Raises:
        ConfigError: the folder is damaged.
        CheckpointError: whom it clones has no durable checkpoint.
        OSError: storage could not be read or written.
    """
    digest = digest_of(config)
    name = run_of(trial, config, pointer)
    about = _about(home, name)
    if about is not None and about["config"] != digest:
        # The driver died before it could write down whom it had begun: the searcher made
        # another trial of the same name.
        name = run_of(trial, config, Pointer(run=name, url="", step=0, iteration=0, config=""))
        about = _about(home, name)
    if about is None:
        is_clone = pointer is not None and name != pointer.run
        if pointer is not None and is_clone and pointer.url is None:
            raise CheckpointError(
                f"trial {trial} cannot be cloned from {pointer.run}, which has no checkpoint yet"
            )
        about = {
            "trial": trial,
            "config": digest,
            "base": pointer.iteration if pointer is not None and is_clone else 0,
            "begins_from": pointer.url if pointer is not None and is_clone else None,
            "begins_at": pointer.step if pointer is not None and is_clone else 0,
        }
        _store(home, name).write(_ABOUT, json.dumps(about).encode())
    return RunFolder(
        trial=trial,
        name=name,
        store=_store(home, name),
        url=home.child(TRIALS, name).url,
        base=int(about["base"]),
        begins_from=about["begins_from"],
        begins_at=int(about["begins_at"]),
        config=config,
    )


def told_by(facts: Sequence[Event]) -> Told:
    """Reports and end of a run, from its journal.

    A step that was done again after a loss is reported again, with the same metrics: it
    counts once. A step that was passed without a report has none: what a worker says of it
    later is of a loop that was behind the others.

    Args:
        facts: By time.
    """
    reports: dict[int, Mapping[str, Any]] = {}
    for event in facts:
        if isinstance(event, Reported) and event.step > max(reports, default=-1):
            reports[event.step] = event.metrics
    done = [e for e in facts if isinstance(e, TrainingDone)]
    last = done[-1] if done else None
    committed = [
        e.path
        for e in facts
        if last is not None and isinstance(e, CheckpointCommitted) and e.step == last.step
    ]
    is_through = last is not None and bool(committed)
    return Told(
        reports=tuple(reports.items()),
        final=last.metrics if last is not None and is_through else None,
        checkpoint=committed[-1] if is_through else None,
    )


def _store(home: Store, name: str) -> Store:
    return home.child(TRIALS, name, JOURNAL[0])


def _about(home: Store, name: str) -> dict[str, Any] | None:
    store = _store(home, name)
    try:
        about = json.loads(store.read(_ABOUT))
    except FileNotFoundError:
        return None
    except ValueError as exc:
        raise ConfigError(
            f"{store.url}/{_ABOUT} is damaged ({exc}): restore it, or remove the run's folder to "
            "begin the trial anew"
        ) from exc
    if not isinstance(about, dict) or not about.keys() >= {"config", "base", "begins_from"}:
        raise ConfigError(f"{store.url}/{_ABOUT} is no file of a trial: restore it")
    return {"begins_at": 0, **about}
