"""A trial's Tune process. The sweep's answers are scripted; no cluster."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import ray.cloudpickle
from ray.exceptions import RayActorError
from ray.tune import Trainable
from ray.tune.result import DONE, RESULT_DUPLICATE

from spotray.errors import SpotrayError
from spotray.tune.messages import Ended, Pointer, Report
from spotray.tune.trial import Trial, trainable

POINTER = Pointer(run="t1", url="s3://b/c40", step=40, iteration=4, config="ab")


class Scripted(Trial):
    """Plays the sweep's part: ``answers`` holds what comes next to each question."""

    def __init__(self, trial_id: str, config: dict[str, Any], **answers: list[Any]) -> None:
        # Not Ray's own constructor, which wants a cluster.
        self._trial_info = SimpleNamespace(trial_id=trial_id)
        self.answers = answers
        self.asked: list[tuple[Any, ...]] = []
        self._turn_to(config)

    def _ask(self, method: str, *args: Any) -> Any:
        self.asked.append((method, self._trial, *args))
        answers = self.answers.get(method)
        answer = answers.pop(0) if answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def questions(self) -> list[str]:
        return [asked[0] for asked in self.asked]


def report(iteration: int, **metrics: Any) -> Report:
    return Report(
        iteration=iteration, step=10 * iteration, metrics=metrics, run_dir="s3://b/trials/t1"
    )


def test_the_first_step_begins_the_trial_and_gives_its_first_report() -> None:
    trial = Scripted("t1", {"lr": 0.1}, next=[None, report(1, val=0.5)])
    assert trial.step() == {"val": 0.5, "training_iteration": 1, "run_dir": "s3://b/trials/t1"}
    assert trial.asked[0] == ("begin", "t1", {"lr": 0.1}, None)
    assert trial.questions() == ["begin", "next", "next"]


def test_a_later_step_begins_nothing() -> None:
    trial = Scripted("t1", {}, next=[report(1), report(2)])
    trial.step()
    assert trial.step()["training_iteration"] == 2
    assert trial.questions().count("begin") == 1


def test_the_number_of_reports_is_the_sweeps_and_not_of_this_process() -> None:
    trial = Scripted("t1", {}, next=[report(7)])
    assert trial.step()["training_iteration"] == 7


def test_the_end_repeats_the_last_report() -> None:
    trial = Scripted("t1", {}, next=[Ended()])
    result = trial.step()
    assert result[DONE]
    assert RESULT_DUPLICATE in result


def test_a_trial_that_was_cut_short_is_not_taken_for_one_that_came_to_its_end() -> None:
    trial = Scripted("t1", {}, next=[report(1), Ended(why="another process has this trial")])
    trial.step()
    with pytest.raises(SpotrayError, match="t1 was stopped: another process has this trial"):
        trial.step()


def test_of_a_trial_that_never_reported_tune_gets_what_it_wants_and_no_number() -> None:
    result = Scripted("t1", {}, next=[Ended(why="the budget", lacking=("val", "a/b"))]).step()
    assert result[DONE]
    assert RESULT_DUPLICATE not in result
    assert all(math.isnan(result[name]) for name in ("val", "a/b", "loss"))
    assert (result["training_iteration"], result["step"]) == (0, 0)


def test_a_restored_trial_begins_where_its_pointer_says() -> None:
    trial = Scripted("t1", {"lr": 0.1}, next=[report(5)])
    trial.load_checkpoint(POINTER.to_dict())
    trial.step()
    assert trial.asked[0] == ("begin", "t1", {"lr": 0.1}, POINTER.to_dict())


def test_a_checkpoint_is_the_pointer_that_the_sweep_gives() -> None:
    trial = Scripted("t1", {}, next=[report(1)], save=[None, POINTER.to_dict()])
    trial.step()
    assert trial.save_checkpoint("/nowhere") == POINTER.to_dict()


def test_a_trial_that_did_not_go_on_yet_stands_where_it_stood() -> None:
    trial = Scripted("t1", {})
    trial.load_checkpoint(POINTER.to_dict())
    assert trial.save_checkpoint("/nowhere") == POINTER.to_dict()
    assert trial.asked == []


def test_a_checkpoint_that_never_comes_is_an_error() -> None:
    trial = Scripted("t1", {}, next=[report(1)])
    trial.step()
    with pytest.raises(SpotrayError, match="trial t1 got no checkpoint within"):
        trial.save_checkpoint("/nowhere")


def test_a_process_that_turns_to_another_trial_leaves_the_first() -> None:
    trial = Scripted("t1", {}, next=[report(1), report(1)])
    trial.step()
    first = trial._token
    trial._trial_info = SimpleNamespace(trial_id="t2")  # Ray tells the name first
    assert trial.reset_config({"lr": 0.3})
    assert trial._token != first
    trial.step()
    assert trial.asked[2:4] == [("leave", "t1"), ("begin", "t2", {"lr": 0.3}, None)]


def test_a_process_that_never_began_has_nothing_to_leave() -> None:
    trial = Scripted("t1", {})
    trial.cleanup()
    trial.cleanup()
    assert trial.asked == []


def test_the_end_of_the_sweep_is_no_error_of_a_trial_that_ends_too() -> None:
    trial = Scripted("t1", {}, next=[report(1)], leave=[RayActorError()])
    trial.step()
    trial.cleanup()


def test_a_bug_of_the_loop_is_raised_as_it_is() -> None:
    trial = Scripted("t1", {}, next=[ZeroDivisionError("a bug of the user's")])
    with pytest.raises(ZeroDivisionError, match="a bug"):
        trial.step()


def test_a_sweeps_class_has_its_name_and_its_place() -> None:
    cls = trainable(
        "train_loop",
        sweep_actor="spotray-sweep-x",
        bundle={"node:10.0.0.1": 0.001},
        selector={"ray.io/node-id": "ab"},
    )
    assert (cls.__name__, cls.sweep_actor) == ("train_loop", "spotray-sweep-x")
    place = cls.default_resource_request({})
    assert place.bundles == [{"node:10.0.0.1": 0.001}]
    assert place._kwargs == {"bundle_label_selector": [{"ray.io/node-id": "ab"}]}


def test_it_takes_no_cpu_and_no_gpu_from_the_workers() -> None:
    cls = trainable("x", sweep_actor="s", bundle={"node:10.0.0.1": 0.001}, selector={})
    needed = cls.default_resource_request({}).required_resources
    assert not {"CPU", "GPU"} & needed.keys()


def test_a_sweeps_class_survives_the_way_to_another_process() -> None:
    cls = trainable("x", sweep_actor="s", bundle={"a": 1.0}, selector={})
    again = ray.cloudpickle.loads(ray.cloudpickle.dumps(cls))
    assert issubclass(again, Trainable)
    assert (again.sweep_actor, dict(again.bundle)) == ("s", {"a": 1.0})
