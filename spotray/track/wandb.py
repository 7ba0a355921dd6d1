"""Weights & Biases: one run by one id, online or offline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from spotray.errors import ConfigError
from spotray.track.facts import Note, Point
from spotray.track.tracker import NAMESPACE, RunAbout, flat

_STEP = "step"


class WandbTracker:
    """Tells the run that has the id of ours. ``WANDB_RUN_ID`` is one for a script of many runs.

    Project, entity, mode and folder are those of ``WANDB_PROJECT`` (else ``spotray``),
    ``WANDB_ENTITY``, ``WANDB_MODE`` and ``WANDB_DIR``. Events are told in ``events/<kind>``.
    """

    name = "wandb"

    def __init__(self, about: RunAbout) -> None:
        import wandb

        self._wandb = wandb
        self._about = about
        self._run: Any = None
        self._mode: Any = os.environ.get("WANDB_MODE") or wandb.setup().settings.mode
        # Here, and without a word to a terminal: later there is nobody to ask for a key.
        is_off = self._mode in ("offline", "dryrun", "disabled")
        if not is_off and not wandb.login(prompt=False, verify=False):
            raise ConfigError(
                "tracking='wandb' has no key for Weights & Biases here: say `wandb login`, set "
                "WANDB_API_KEY, or set WANDB_MODE=offline and sync later"
            )

    def begin(self) -> str:
        about = self._about
        self._run = run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT") or NAMESPACE,
            id=about.run_id,
            name=about.name,
            resume="allow",
            # As the environment has them now: wandb may have read it long ago in this process.
            mode=self._mode,
            dir=os.environ.get("WANDB_DIR"),
            config={**flat(about.config), "spotray": {"run_dir": about.url, **about.labels}},
            # The training script may have a run of its own in this process.
            reinit="create_new",
            settings=self._wandb.Settings(console="off", silent=True),
        )
        # Our rows are counted through all starts; charts are drawn over the training's steps.
        run.define_metric(_STEP, hidden=True)
        run.define_metric("*", step_metric=_STEP)
        where = None if run.offline else run.url
        return str(where or f"wandb sync --append {os.path.dirname(run.dir)}")

    def tell(self, points: Sequence[Point], notes: Sequence[Note], *, rows: int) -> None:
        for step, alike in groupby(points, key=lambda point: point.step):
            found = list(alike)
            row: dict[str, Any] = {point.series: point.value for point in found}
            self._run.log({_STEP: step, **row}, step=rows)
            rows += len(found)
        for note in notes:
            self._run.log({_STEP: note.step, f"events/{note.kind}": note.text}, step=rows)
            rows += 1

    def end(self, status: str) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if status == "finished" else 1)
            self._run = None
