"""Launches through the real `ray up`, `exec`, `dashboard`, `down` and a real job server.

The tests share one head, in the order of the file: bringing it up takes half a minute.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from spotray.cli.main import main
from spotray.clock import SystemClock, wait_until
from spotray.errors import ClusterUnreachable
from spotray.launch.jobs import JobServer
from spotray.launch.records import Records

from .machine import Machine, ray_processes

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = Machine(monkeypatch)
        try:
            yield made
        finally:
            made.remove()


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words.txt").write_text("hello from the folder\n")
    (tmp_path / ".gitignore").write_text("secret.txt\n")
    (tmp_path / "secret.txt").write_text("stays here\n")
    return tmp_path


def script(workdir: Path, *lines: str) -> str:
    (workdir / "job.py").write_text("import os, sys, time\n" + "\n".join(lines) + "\n")
    return "job.py"


def launch(machine: Machine, workdir: Path, *words: str) -> int:
    options = ["-y", "--no-check", "--workdir", str(workdir)]
    return main(["launch", *options, str(machine.file), *words])


def starts_of_ray(machine: Machine) -> int:
    return sum("scripts start" in line for line in machine.commands())


def test_a_job_has_its_folder_and_variables_and_its_exit_code_comes_back(
    machine: Machine, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = script(
        workdir,
        "print(open('data/words.txt').read(), end='')",
        "print('secret', os.path.exists('secret.txt'), sys.argv[1:], os.environ['COLOUR'])",
        "print('wandb', os.environ['WANDB_RUN_ID'], os.environ['WANDB_RESUME'])",
        "sys.exit(7)",
    )
    assert launch(machine, workdir, "--env", "COLOUR=red", job, "--lr", "3") == 7
    out, err = capfd.readouterr()
    one = Records().need("job-1")
    assert "hello from the folder\nsecret False ['--lr', '3'] red\n" in out
    assert f"wandb {one.wandb_run_id} allow\n" in out
    assert (one.state, one.exit_code, one.env_names) == ("failed", 7, ("COLOUR",))
    assert "job job-1 failed with 7" in err
    assert "WANDB" not in err
    assert starts_of_ray(machine) == 1


def test_a_log_goes_on_where_the_connection_broke(machine: Machine, workdir: Path) -> None:
    go = workdir / "go"
    code = (
        f"import os, time; print('before', flush=True)\nwhile not os.path.exists('{go}'): "
        "time.sleep(0.1)\nprint('meanwhile', flush=True)\ntime.sleep(3)\nprint('after')"
    )
    said: list[str] = []
    told: list[str] = []

    def show(text: str) -> None:
        said.append(text)
        if "before" in text:
            machine.cut()

    def tell(line: str) -> None:
        told.append(line)
        if "broke" in line:
            go.touch()
            machine.mend()

    with JobServer(machine.remote) as server:
        server.submit(
            entrypoint=f'python -c "{code}"',
            submission_id="cut-1",
            archive=None,
            env={},
            metadata={},
        )
        state = server.follow("cut-1", show=show, tell=tell)
    assert (state.state, state.exit_code) == ("succeeded", 0)
    words = "".join(said).splitlines()[-3:]
    assert words == ["before", "meanwhile", "after"]
    assert "".join(said).count("before\n") == 1
    assert any("broke" in line for line in told)
    assert told[-1] == "connected again"


def test_a_job_goes_on_without_its_shell_and_any_other_finds_it(
    machine: Machine, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = script(workdir, "print('at work', flush=True)", "time.sleep(600)")
    assert launch(machine, workdir, "--detach", "--name", "long", job) == 0
    assert starts_of_ray(machine) == 1, "the cluster that runs is used again"
    watching = subprocess.Popen(
        [sys.executable, "-m", "spotray.cli.main", "logs", "long"],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert watching.stdout is not None
    while "at work" not in (line := watching.stdout.readline()):
        assert line, "the log ended"
    watching.send_signal(signal.SIGINT)
    assert watching.wait(60) == 130
    watching.stdout.close()
    capfd.readouterr()
    assert main(["status", "long"]) == 0
    assert "long: running" in capfd.readouterr().out
    assert launch(machine, workdir, "--name", "long", job) == 1
    assert "spotray stop long" in capfd.readouterr().err
    assert main(["stop", "long"]) == 0
    assert "job long stopped" in capfd.readouterr().out
    assert main(["logs", "long"]) == 143
    assert main(["jobs"]) == 0
    assert "stopped" in capfd.readouterr().out


def test_a_launch_begun_again_under_its_name_is_the_same_run_for_wandb(
    machine: Machine, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = Records().need("long").wandb_run_id
    job = script(workdir, "print('run', os.environ['WANDB_RUN_ID'])")
    assert launch(machine, workdir, "--name", "long", job) == 0
    assert f"run {before}\n" in capfd.readouterr().out
    assert Records().need("long").restarts == 1


def test_a_deadline_stops_the_job_on_the_head(
    machine: Machine, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = script(workdir, "print('until', os.environ['SPOTRAY_DEADLINE_S'])", "time.sleep(600)")
    assert launch(machine, workdir, "--deadline", "20s", job) == 75
    out = capfd.readouterr().out
    assert "spotray: the job is stopped: its deadline is reached" in out


def test_a_budget_stops_the_job_by_what_the_nodes_cost(
    machine: Machine, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # What the head's own bill would be, asked of the real Ray there.
    rates = '{"spot": {}, "on_demand": {"head": 3600.0}}'
    with JobServer(machine.remote) as server:
        server.submit(
            entrypoint="python -m spotray.launch.supervise --max-cost-usd 2 "
            f"--rates '{rates}' -- sleep 600",
            submission_id="rich-1",
            archive=None,
            env={},
            metadata={},
        )
        said: list[str] = []
        state = server.follow("rich-1", show=said.append, tell=said.append)
    assert state.exit_code == 75
    assert "of $2.00 are spent" in "".join(said)


def test_the_controller_s_way_to_stop_a_job_ends_the_one_of_its_driver_and_no_other(
    machine: Machine, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = script(
        workdir,
        "import ray",
        "from spotray.controller.applications import stop_job",
        "ray.init(log_to_driver=False)",
        "print('of nobody:', stop_job('ffff0000'), flush=True)",
        "print('of this one:', stop_job(ray.get_runtime_context().get_job_id()), flush=True)",
        "time.sleep(120)",
    )
    assert launch(machine, workdir, job) == 143
    assert "of nobody: it was not submitted as a job" in capfd.readouterr().out


def test_another_spec_under_the_same_name_is_refused_with_the_difference(
    machine: Machine, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = yaml.safe_load(machine.file.read_text())
    config["max_workers"] = 3
    other = workdir / "other.yaml"
    other.write_text(yaml.safe_dump(config))
    job = script(workdir, "print('never')")
    options = ["-y", "--no-check", "--workdir", str(workdir)]
    assert main(["launch", *options, str(other), job]) == 1
    err = capfd.readouterr().err
    assert "max_workers is 0 there and 3 in yours" in err
    assert str(Records().spec_file(machine.name)) in err
    Records().spec_file(machine.name).unlink()  # as on another laptop
    assert main(["launch", *options, str(other), job]) == 1
    assert "max_workers is 0 there and 3 in yours" in capfd.readouterr().err
    assert launch(machine, workdir, script(workdir, "print('the same spec')")) == 0


def test_a_lost_network_is_told_and_the_last_known_state_is_shown(
    machine: Machine, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    machine.cut()
    try:
        with JobServer(machine.remote) as server, pytest.raises(ClusterUnreachable, match="head"):
            server.state("cut-1")
    finally:
        machine.mend()


def test_the_cluster_goes_down_though_the_job_failed(
    machine: Machine, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = script(workdir, "sys.exit(3)")
    assert launch(machine, workdir, job, "--down") == 3
    assert machine.remote.head() is None
    one = Records().all()[-1]
    assert one.down_at_s is not None
    left = (machine.folder / "home" / "spotray-take-down.log").exists()
    assert left, "the head would have ended the cluster, had nobody else"
    assert wait_until(lambda: not ray_processes(machine.folder), timeout_s=20, clock=SystemClock())
