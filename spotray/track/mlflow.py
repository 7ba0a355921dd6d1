"""MLflow: one run, found again by a tag of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from spotray.track.facts import Note, Point
from spotray.track.tracker import NAMESPACE, RunAbout, flat

_TAG = "spotray.run_id"
_BATCH = 500  # metrics of one request; MLflow takes 1000
_PARAMS = 100  # of one request; MLflow takes no more
_PARAM_CHARS = 500  # of a value; older servers take no more
_SHOWN_NOTES = 50  # in the run's description; a tag holds 8000 characters
_STATUS = {"finished": "FINISHED", "failed": "FAILED"}  # else KILLED


class MlflowTracker:
    """Tells the server (or folder, or database) of ``MLFLOW_TRACKING_URI``.

    The experiment is that of ``MLFLOW_EXPERIMENT_NAME``, else ``spotray``. The run's description
    lists its last events.
    """

    name = "mlflow"

    def __init__(self, about: RunAbout) -> None:
        import mlflow
        from mlflow.entities import Metric, Param

        self._about = about
        self._client = mlflow.MlflowClient()
        self._metric, self._param = Metric, Param
        self._run = ""
        self._notes: list[str] = []

    def begin(self) -> str:
        from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

        self._note_tag = MLFLOW_RUN_NOTE
        experiment = self._experiment()
        found = self._client.search_runs(
            [experiment], filter_string=f"tags.`{_TAG}` = '{self._about.run_id}'", max_results=1
        )
        if found:
            run = found[0]
            self._client.update_run(run.info.run_id, status="RUNNING")
            self._notes = str(run.data.tags.get(self._note_tag, "")).splitlines()
        else:
            tags = {f"spotray.label.{name}": value for name, value in self._about.labels.items()}
            tags |= {_TAG: self._about.run_id, "spotray.run_dir": self._about.url}
            run = self._client.create_run(experiment, run_name=self._about.name, tags=tags)
            params = [
                self._param(name, str(value)[:_PARAM_CHARS])
                for name, value in flat(self._about.config).items()
            ]
            for start in range(0, len(params), _PARAMS):
                self._client.log_batch(run.info.run_id, params=params[start : start + _PARAMS])
        self._run = str(run.info.run_id)
        return f"MLflow run {self._run}, experiment {experiment}"

    def tell(self, points: Sequence[Point], notes: Sequence[Note], *, rows: int) -> None:
        metrics = [
            self._metric(point.series, point.value, int(point.at_s * 1000), point.step)
            for point in points
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + _BATCH])
        if notes:
            lines = [f"- step {note.step}, {note.kind}: {note.text}" for note in notes]
            self._notes = [*self._notes, *lines][-_SHOWN_NOTES:]
            self._client.set_tag(self._run, self._note_tag, "\n".join(self._notes))

    def end(self, status: str) -> None:
        self._client.set_terminated(self._run, status=_STATUS.get(status, "KILLED"))

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or NAMESPACE
        known: Any = self._client.get_experiment_by_name(name)
        if known is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another job made it in between, else that is told
                known = self._client.get_experiment_by_name(name)
                if known is None:
                    raise
        return str(known.experiment_id)
