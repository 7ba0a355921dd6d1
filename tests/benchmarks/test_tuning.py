"""The benchmark of sweeps: what is taken when, what lines tell, how rows are summed up."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery.measure import Line
from benchmarks.tuning import measure, run
from benchmarks.tuning.crowd import Process, crowd
from benchmarks.tuning.schedule import NOTICE_S, Change, Loss, Taker, replay, script
from spotray.errors import LabError, TraceError
from spotray.events import CheckpointCommitted, NodeDown, NodeUp
from spotray.market.trace import Trace


class PaperNodes:
    """Nodes by name only; what is done to them is written down."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.done: list[str] = []

    def oldest(self) -> str | None:
        return self.names[0] if self.names else None

    def kill(self, name: str) -> None:
        self.done.append(f"kill {self.names.pop(self.names.index(name))}")

    def preempt(self, name: str, notice_s: float) -> None:
        self.done.append(f"notice {notice_s:g} {self.names.pop(self.names.index(name))}")

    def set_capacity(self, nodes: int, notice_s: float) -> None:
        self.done.append(f"capacity {nodes}, {notice_s:g}")


class GoneNodes(PaperNodes):
    def kill(self, name: str) -> None:
        raise LabError(f"there is no node {name!r}")


def take(
    nodes: PaperNodes, schedule: Sequence[Loss | Change], *looks: tuple[int, float]
) -> tuple[Taker, list[str]]:
    said: list[str] = []
    taker = Taker(nodes, schedule, said.append)
    for step, elapsed_s in looks:
        taker.look(step=step, elapsed_s=elapsed_s)
    taker.close()
    return taker, said


def line(step: int, *, at_s: float = 0.0, rank: int = 0) -> Line:
    return Line(at_s=at_s, step=step, world_size=2, rank=rank, pid=1, node="spot-1")


def row(system: str, trial: str, *, scheduler: str = "random", **more: Any) -> dict[str, Any]:
    if trial == run.TOTAL:
        whole = {"outcome": "ok", "losses_left": 0, "trials": 2, "trials_lost": 0, "wall_s": 90.0}
        whole |= {"began_anew": 0, "trained_again": None, "steps_redone": 3, "cost_usd": 0.0123}
        return {"system": system, "scheduler": scheduler, "trial": trial, **whole, **more}
    mine = {"lr": 0.01, "val": 0.5, "weights_sha256": "a1", "steps": 80, "steps_redone": 0}
    return {"system": system, "scheduler": scheduler, "trial": trial, **mine, **more}


def rows() -> list[dict[str, Any]]:
    told = [row(run.BASELINE, "0"), row(run.BASELINE, "1", val=0.25), row(run.BASELINE, "all")]
    told += [row("spot", "0"), row("spot", "1", val=0.25), row("spot", "all")]
    told += [row("ray-tune", "0", val=0.75, weights_sha256="b2"), row("ray-tune", "all")]
    return told


# -- what is taken when


def test_a_script_has_six_losses_of_both_kinds_inside_of_the_work() -> None:
    losses = script(run.LOSSES, steps=1280)
    assert [loss.kind for loss in losses].count("kill") == 3
    assert len(losses) == 6
    steps = [loss.at_step for loss in losses]
    assert steps == sorted(set(steps))
    assert 0 < steps[0] < steps[-1] < 1280


def test_a_loss_comes_with_its_step_and_once() -> None:
    nodes = PaperNodes("a", "b", "c")
    schedule = [Loss(at_step=10, kind="kill"), Loss(at_step=20, kind="notice")]
    taker, _ = take(nodes, schedule, (9, 100.0))
    assert nodes.done == []
    assert taker.losses_left == 2
    taker, said = take(nodes, schedule, (9, 0.0), (25, 1.0), (26, 2.0))
    assert nodes.done == ["kill a", f"notice {NOTICE_S:g} b"]
    assert taker.losses_left == 0
    assert said == [
        "25 steps: a is taken without a word",
        f"25 steps: b goes in {NOTICE_S:g} s",
    ]


def test_where_no_node_is_left_that_is_said_and_nothing_else_happens() -> None:
    _, said = take(PaperNodes(), [Loss(at_step=1, kind="kill")], (1, 0.0))
    assert said == ["1 steps: no node is there for a kill"]
    _, said = take(GoneNodes("a"), [Loss(at_step=1, kind="kill")], (1, 0.0))
    assert said == ["1 steps: kill left out: there is no node 'a'"]


def test_a_trace_is_replayed_from_its_hour_in_its_time_with_both_kinds_of_losses() -> None:
    trace = Trace(gap_s=100.0, values=(0, 4, 4, 2, 4, 3, 1, 1))
    changes = replay(trace, most=4, from_s=150.0, until_s=599.0, time_scale=10.0)
    assert changes == [
        Change(at_s=15.0, nodes=2, kind="kill"),
        Change(at_s=25.0, nodes=4, kind="kill"),
        Change(at_s=35.0, nodes=3, kind="notice"),
    ]
    nodes = PaperNodes()
    taker, _ = take(nodes, changes, (0, 14.0), (5, 26.0))
    assert nodes.done == ["capacity 2, 0", "capacity 4, 0"]
    assert taker.losses_left == 0, "a trace that goes on after the sweep is no failure"


def test_nodes_that_the_sweep_would_not_have_are_nobodys_loss() -> None:
    trace = Trace(gap_s=100.0, values=(9, 6, 3, 8, 4, 3))
    changes = replay(trace, most=4, from_s=0.0, until_s=599.0, time_scale=100.0)
    assert [(c.at_s, c.nodes, c.kind) for c in changes] == [
        (2.0, 3, "kill"),
        (3.0, 4, "kill"),
        (5.0, 3, "notice"),
    ]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0, 4, 4), "no node at hour 0, where a sweep would wait for ever: choose other hours"),
        ((4, 4, 0), "no node at hour 0.05"),
        ((4, 0.53, 4), "a capacity of 0.53 nodes: not a whole number"),
    ],
)
def test_a_trace_on_which_no_sweep_could_end_is_one_line(
    values: tuple[float, ...], words: str
) -> None:
    trace = Trace(gap_s=60.0, values=values)
    with pytest.raises(TraceError, match=words):
        replay(trace, most=4, from_s=0.0, until_s=180.0, time_scale=1.0)


def test_a_trace_from_a_file_takes_the_nodes_of_every_system_alike(tmp_path: Path) -> None:
    path = tmp_path / "zone.json"
    path.write_text(Trace(gap_s=1800.0, values=(0, 0, 3, 1, 6, 2, 4)).to_json())
    arguments = Namespace(trace=path, trace_from=1.0, trace_hours=2.0, trace_scale=1800.0)
    size = run.Size(trials=2, epochs=1)
    first_nodes, schedule = run.schedule_of(arguments, "random", size)
    assert first_nodes == 3
    nodes = PaperNodes()
    _, said = take(nodes, schedule, (1, 0.0), (2, 1.0), (3, 2.5), (4, 60.0))
    assert nodes.done == ["capacity 1, 0", "capacity 4, 0", f"capacity 2, {NOTICE_S:g}"] + [
        "capacity 4, 0"
    ]
    assert said[0] == "2 steps: the market holds 1 nodes"


def test_a_file_that_is_no_trace_ends_the_benchmark_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no.json"
    path.write_text("{}")
    with pytest.raises(SystemExit) as ended:
        run.main(["--quick", "--trace", str(path)])
    assert ended.value.code == 2
    assert f"{path}: no metadata.gap_seconds" in capsys.readouterr().err


# -- what the lines tell


def test_a_step_that_rank_0_ended_twice_was_done_again_and_other_ranks_do_not_count() -> None:
    lines = [line(1), line(1, rank=1), line(2), line(2, rank=1), line(2), line(3)]
    done = measure.work({"ab_00004": lines}, saved_s={})
    assert done == {4: measure.Work(steps_done=3, steps_redone=1)}


def test_processes_that_every_node_has_are_no_trials() -> None:
    titles = ["ray::LiveWorker.run", "ray::LiveWorker.run", "ray::train_loop.train", "ray::IDLE"]
    titles += ["ray::SweepActor.next", "ray::DashboardAgent", "/usr/bin/raylet", "python"]
    mib = [300, 300, 100, 50, 320, 70, 20, 400]
    found = [Process(title=t, pss_bytes=m * 2**20) for t, m in zip(titles, mib, strict=True)]
    seen = crowd(found, trials=2)
    assert (seen.processes, seen.processes_per_trial) == (3, 1.5)
    assert seen.pss_mib_per_trial == 350
    assert seen.sweep_pss_bytes == 320 * 2**20
    assert crowd([], trials=0).processes_per_trial == 0


def test_all_began_with_the_first_step_of_the_last_trial() -> None:
    runs = {
        "ab_00000": [line(1, at_s=12.0), line(2, at_s=13.0)],
        "ab_00001": [line(3, at_s=30.0)],
        "ab_00001-c10e": [line(3, at_s=40.0)],
    }
    assert measure.all_began_s(runs, 2, since_s=10.0) == 20.0
    assert measure.all_began_s(runs, 3, since_s=10.0) is None


def test_single_workers_run_all_at_once() -> None:
    given = {"quick": False, "trials": 32, "epochs": None, "workers": 1}
    size = run.size_of(Namespace(**given))
    assert (size.trials, size.workers, size.cpus_per_node) == (32, 1, 8)
    usual = run.size_of(Namespace(quick=False, trials=None, epochs=None, workers=4))
    assert usual == run.FULL
    assert usual.cpus_per_node == 1
    assert set(plan(workers=1)) == {("on-demand", "random"), ("spot", "random")}


def test_a_trial_began_anew_only_if_it_had_a_checkpoint() -> None:
    lines = [line(1, at_s=1.0), line(2, at_s=2.0), line(1, at_s=5.0)]
    for saved_s, times in [({}, 0), ({"ab_00000": 6.0}, 0), ({"ab_00000": 2.5}, 1)]:
        assert measure.work({"ab_00000": lines}, saved_s=saved_s)[0].began_anew == times


def test_the_first_checkpoint_is_known_by_the_journal_or_by_going_on_after_it() -> None:
    def saved(at_s: float) -> CheckpointCommitted:
        return CheckpointCommitted(
            at_s=at_s, step=1, path="", seconds=0.0, blocked_s=0.0, size_bytes=1
        )

    told = {"ab_00000": [saved(7.0), saved(4.0)], "ab_00001": [NodeUp(at_s=1.0, node_id="a")]}
    assert measure.first_saved(told) == {"ab_00000": 4.0}
    lines = {"ab_00000": [line(10, at_s=1.0), line(11, at_s=2.0)], "ab_00001": [line(10)]}
    assert measure.went_past(lines, 10) == {"ab_00000": 2.0}


def test_the_steps_of_a_clone_are_new_though_the_trial_did_steps_of_that_number() -> None:
    runs = {"ab_00001": [line(1), line(2)], "ab_00001-0a1b2c3d": [line(2), line(3)]}
    assert measure.work(runs, saved_s={}) == {1: measure.Work(steps_done=4)}


def test_who_trained_after_a_moment_is_known_by_its_lines() -> None:
    runs = {"ab_00000": [line(1, at_s=5.0)], "ab_00001": [line(1, at_s=5.0), line(2, at_s=7.0)]}
    assert measure.trained_since(runs, 6.0) == {1}


def test_a_name_that_is_no_trials_is_refused() -> None:
    with pytest.raises(ValueError, match="is no trial's name"):
        measure.number_of("sweep")


def test_only_what_the_market_took_in_the_sweeps_time_counts() -> None:
    def down(node: str, at_s: float, **more: Any) -> NodeDown:
        return NodeDown(at_s=at_s, node_id=node, **{"cause": "preemption", **more})

    facts = [
        NodeUp(at_s=0.0, node_id="a", market="aws/z/t/spot", spot=True, usd_per_hour=3.6),
        down("b", 5.0),
        down("c", 15.0),
        down("d", 16.0, noticed=True),
        down("e", 17.0, noticed=True),
        down("f", 18.0, cause="shutdown"),
    ]
    told = measure.market(facts, from_s=10.0, until_s=110.0)
    assert (told.noticed, told.silent) == (2, 1)
    assert told.cost_usd == pytest.approx(0.1)
    assert told.unpriced_s == 0


# -- rows


def test_a_trial_on_spot_is_held_to_the_bits_of_the_undisturbed_one_and_ray_tunes_is_not() -> None:
    told = run.compare(rows())
    equal = {(r["system"], r["trial"]): r["equal"] for r in told}
    assert equal[("spot", "0")] is True
    assert equal[("spot", run.TOTAL)] == 2
    assert equal[("ray-tune", "0")] is None
    assert equal[(run.BASELINE, "0")] is None
    assert all(run.is_good(r) for r in told if r["trial"] == run.TOTAL and r["system"] == "spot")


@pytest.mark.parametrize("difference", [{"val": 0.5000000001}, {"weights_sha256": "c3"}])
def test_one_other_bit_in_one_trial_is_bad(difference: dict[str, Any]) -> None:
    given = [r | difference if (r["system"], r["trial"]) == ("spot", "0") else r for r in rows()]
    whole = next(r for r in run.compare(given) if (r["system"], r["trial"]) == ("spot", run.TOTAL))
    assert whole["equal"] == 1
    assert not run.is_good(whole)


@pytest.mark.parametrize(
    "harm",
    [
        {"outcome": "stuck"},
        {"trials_lost": 1},
        {"began_anew": 1},
        {"losses_left": 2},
        {"trained_again": 1},
    ],
)
def test_a_sweep_that_broke_a_promise_is_bad(harm: dict[str, Any]) -> None:
    assert run.is_good(row("spot", run.TOTAL, equal=2))
    assert not run.is_good(row("spot", run.TOTAL, equal=2, **harm))


def test_without_an_undisturbed_sweep_nothing_is_compared() -> None:
    told = run.compare([row("spot", "0"), row("spot", run.TOTAL)])
    assert [r["equal"] for r in told] == [None, None]


def test_the_summary_shows_each_sweep_and_the_trials_side_by_side() -> None:
    failed = row("spot", run.TOTAL, scheduler="pbt", outcome="stuck: no new step")
    text = run.summary(run.compare([*rows(), failed]))
    sweeps, trials, remarks = text.split("\n\n")
    assert sweeps.splitlines()[2].split()[:4] == ["random", "spot", "90", "0.0123"]
    assert trials.splitlines()[0].split() == ["last", "val", "lr", "on-demand", "spot", "ray-tune"]
    assert trials.splitlines()[1].split() == ["trial", "0", "0.01", "0.5", "0.5", "0.75"]
    assert trials.splitlines()[2].split()[-1] == "-"
    assert remarks == "pbt, spot: stuck: no new step"


def test_the_picture_has_a_bar_for_each_sweep_and_says_what_failed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    failed = {"system": "spot", "scheduler": "pbt", "trial": run.TOTAL, "outcome": "stuck: no"}
    assert run.picture(tmp_path / "rows.svg", [*rows(), failed])
    drawn = (tmp_path / "rows.svg").read_text()
    for text in ("random", "ray-tune", "90.0 s, 3 steps again", "stuck"):
        assert f"<!-- {text}" in drawn or f"<!--  {text}" in drawn


# -- arguments


def plan(**given: Any) -> list[tuple[str, str]]:
    usual = {"quick": False, "systems": None, "schedulers": None, "workers": 4}
    return run.plan(Namespace(**usual | given))


def test_every_planned_sweep_exists_and_the_undisturbed_one_comes_first() -> None:
    assert all(system in run.SYSTEMS and s in run.SCHEDULERS for system, s in plan())
    assert plan()[0] == plan(quick=True)[0] == (run.BASELINE, "random")
    assert {"spot", "ray-tune"} <= {system for system, _ in plan(quick=True)}


def test_a_choice_of_systems_and_schedulers_is_kept() -> None:
    assert plan(schedulers=("asha", "pbt")) == [("spot", "asha"), ("spot", "pbt")]
    assert plan(quick=True, systems=("spot-driver",)) == [("spot-driver", "random")]
    chosen = plan(systems=("ray-tune",), schedulers=("pbt", "asha"))
    assert chosen == [("ray-tune", "pbt"), ("ray-tune", "asha")]


def test_a_trace_takes_the_place_of_the_script(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(Trace(gap_s=3600.0, values=(4, 3, 1, 4)).to_json())
    given = Namespace(
        quick=False, trace=file, trace_from=1.0, trace_hours=1.5, trace_scale=60.0, losses=None
    )
    nodes, schedule = run.schedule_of(given, "random", run.FULL)
    assert nodes == 3
    assert schedule == [Change(at_s=60.0, nodes=1, kind="kill")]
    given.trace = None
    nodes, schedule = run.schedule_of(given, "asha", run.FULL)
    assert nodes == run.WORKERS
    assert len(schedule) == run.LOSSES
    assert all(
        isinstance(loss, Loss) and loss.at_step < 0.35 * 8 * run.FULL.steps for loss in schedule
    )
