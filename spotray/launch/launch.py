"""One launch, from a cluster's YAML and a script to the job's exit code.

`plan` looks at everything that can be wrong before anything is billed; `launch` acts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spotray.clock import Clock
from spotray.cluster.problems import Problem
from spotray.cluster.validate import validate
from spotray.errors import ClusterUnreachable, ConfigError, LaunchError, SpotrayError
from spotray.launch.estimate import Estimate, estimate
from spotray.launch.jobs import JobServer, JobState
from spotray.launch.pack import MAX_BYTES, Folder, check_script, look, pack
from spotray.launch.records import NAME, Launch, Records, spec_diff
from spotray.launch.remote import RayCommands, Remote
from spotray.launch.running import differences
from spotray.launch.wishes import DEADLINE, LAUNCH, MAX_COST
from spotray.market.prices import PriceTable

LOST_CODE = 1  # of a job that is gone without a code of its own
STOPPED_CODE = 143  # as a shell says of SIGTERM
_DOWN_AFTER_S = 600.0  # then the head ends the cluster itself, if no laptop did
_CONNECT_S = 120.0  # a job server starts some seconds after its head
_ATTEMPTS = 3  # to submit a job
_DIFFERENCES = 4  # that are named
_DASHBOARD_PORT = re.compile(r"--dashboard-port[= ](\d+)")


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user asked for."""

    command: tuple[str, ...]  # the script, and its arguments
    workdir: Path = Path(".")
    name: str = ""  # of the launch; empty: one is made
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    down: bool = False
    deadline_s: float | None = None  # Unix seconds
    max_cost_usd: float | None = None
    hours: float | None = None  # for the estimate
    check: bool = True  # whether problems of the YAML refuse the launch


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A launch that may begin."""

    cluster_name: str
    cluster_file: Path
    text: str  # of the file
    config: Mapping[str, Any]
    wishes: Wishes
    launch: Launch  # as it will be written down
    folder: Folder
    estimate: Estimate
    warnings: tuple[Problem, ...] = ()


def read_cluster(file: Path) -> tuple[str, dict[str, Any]]:
    """The text of a cluster's YAML, and what it says.

    Raises:
        ConfigError: it cannot be read, or is no such thing.
    """
    try:
        text = file.read_text(encoding="utf-8")
        config = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {file}: {getattr(exc, 'strerror', None) or exc}") from exc
    except yaml.YAMLError as exc:
        raise ConfigError(f"{file} is no YAML: {exc}") from exc
    if not isinstance(config, dict) or not config.get("cluster_name"):
        raise ConfigError(f"{file} has no cluster_name: is it a cluster's YAML for `ray up`?")
    return text, config


def remote_of(file: Path, config: Mapping[str, Any]) -> RayCommands:
    """The way to a cluster, through Ray's commands."""
    commands = config.get("head_start_ray_commands")
    found = _DASHBOARD_PORT.search(" ".join(map(str, commands or [])))
    return RayCommands(file, dashboard_port=int(found[1]) if found else 8265)


def plan(file: Path, wishes: Wishes, *, prices: PriceTable, records: Records, clock: Clock) -> Plan:
    """Everything that a launch needs to know, and refuses for.

    Raises:
        ConfigError: something is wrong with the YAML, the script, or the wishes.
    """
    text, config = read_cluster(file)
    name = str(config["cluster_name"])
    problems = validate({str(file): text}, rehearsal=False)[0].problems
    wrong = [one for one in problems if not one.is_warning]
    if wrong and wishes.check:
        raise ConfigError(_all(wrong, file))
    folder = look(wishes.workdir)
    check_script(folder, wishes.command[0])
    _command(wishes.command)  # refuses what nobody knows how to run
    costs = estimate(config, prices, hours=wishes.hours, now_s=clock.now_s())
    if wishes.max_cost_usd is not None and costs.high_usd_per_hour is None:
        raise ConfigError(
            f"--max-cost cannot be kept: no price is known of {', '.join(costs.unknown)}: give "
            "them with --prices FILE (spotray/market/prices.csv shows the form)"
        )
    return Plan(
        cluster_name=name,
        cluster_file=file,
        text=text,
        config=config,
        wishes=wishes,
        launch=_written_down(name, file, wishes, records, now_s=clock.now_s()),
        folder=folder,
        estimate=costs,
        warnings=tuple(one for one in problems if one.is_warning or one in wrong),
    )


def preflight(config: Mapping[str, Any]) -> list[Problem]:
    """What the cloud itself finds wrong, before anything is billed: where that can be asked."""
    from spotray.cluster.preflight import check  # late: it brings a cloud's SDK

    return list(check(config))


def check_online(planned: Plan) -> list[Problem]:
    """Ask the cloud; the warnings.

    Raises:
        ConfigError: it would refuse the cluster.
    """
    problems = preflight(planned.config)
    wrong = [one for one in problems if not one.is_warning]
    if wrong and planned.wishes.check:
        raise ConfigError(_all(wrong, planned.cluster_file))
    return problems


def bring_up(
    planned: Plan, remote: Remote, *, records: Records, tell: Callable[[str], None]
) -> None:
    """Have the cluster there, with this very spec.

    Raises:
        ConfigError: one of that name runs with another spec.
        LaunchError: it did not come up.
        ClusterUnreachable: nobody could be asked whether it is there.
    """
    name = planned.cluster_name
    if (head := remote.head()) is not None:
        differ, where = _running(planned, remote, records)
        if differ:
            raise ConfigError(
                f"cluster {name} runs with another spec: {differ}: launch with {where}, or take "
                f"it down (ray down {planned.cluster_file}), or give yours another cluster_name"
            )
        tell(f"cluster {name} is up at {head}: it is used as it is")
        if records.spec(name) is None:
            records.save_spec(name, planned.text)
        return
    records.save_spec(name, planned.text)
    tell(f"bringing cluster {name} up")
    remote.up()


def _running(planned: Plan, remote: Remote, records: Records) -> tuple[str, str]:
    """What differs in the cluster that runs, in a line, and where its spec is."""
    name = planned.cluster_name
    before, running = records.spec(name), remote.config()
    where = str(records.spec_file(name)) if before else "that (~/ray_bootstrap_config.yaml there)"
    if running is not None:
        found = differences(running, planned.config)
    else:  # nobody can say but the record of this machine
        found = spec_diff(before, planned.text)[2:] if before is not None else []
    more = f"; and {len(found) - _DIFFERENCES} more" if len(found) > _DIFFERENCES else ""
    return "; ".join(found[:_DIFFERENCES]) + more, where


def packed(planned: Plan, place: Path, *, tell: Callable[[str], None]) -> Path:
    """The working folder as an archive in ``place``.

    Raises:
        ConfigError: it is too large; nothing was billed yet.
    """
    archive = place / "workdir.zip"
    size = pack(planned.folder, archive)
    tell(
        f"working folder {planned.folder.path}: {planned.folder.size_text}, packed "
        f"{size / 1024**2:.1f} MiB of at most {MAX_BYTES / 1024**2:.0f}"
    )
    return archive


def submit(
    planned: Plan, server: JobServer, archive: Path, *, records: Records, clock: Clock
) -> Launch:
    """Upload the folder and start the job.

    Raises:
        ClusterUnreachable: the head's job server does not answer.
        LaunchError: it refuses the job.
    """
    launch = planned.launch
    _wait_for(server, clock=clock)
    records.save(launch)  # before: from now on there may be a job
    try:
        _submit_once(planned, server, archive)
    except SpotrayError as exc:
        records.save(lost(launch, str(exc), now_s=clock.now_s()))
        raise
    launch = dataclasses.replace(launch, state="pending")
    records.save(launch)
    return launch


def _submit_once(planned: Plan, server: JobServer, archive: Path) -> None:
    """Also over a connection that breaks while nobody knows whether the job was taken."""
    launch = planned.launch
    for attempt in range(_ATTEMPTS):
        try:
            return server.submit(
                entrypoint=entrypoint(planned),
                submission_id=launch.submission_id,
                archive=archive,
                env=job_environment(planned.wishes, launch),
                metadata={"spotray_launch": launch.name},
            )
        except ClusterUnreachable:
            try:
                server.state(launch.submission_id)
                return
            except LaunchError:  # it was not
                if attempt + 1 == _ATTEMPTS:
                    raise


def follow(
    launch: Launch,
    server: JobServer,
    *,
    records: Records,
    clock: Clock,
    show: Callable[[str], None],
    tell: Callable[[str], None],
    skip: int = 0,
) -> Launch:
    """Show a job's log to its end, without its first ``skip`` characters.

    Raises:
        LaunchError: cluster or job are gone; it is written down as lost.
    """

    def changed(state: JobState) -> None:
        records.save(seen(launch, state, now_s=clock.now_s()))

    try:
        state = server.follow(
            launch.submission_id, show=show, tell=tell, changed=changed, skip=skip
        )
    except LaunchError as exc:
        records.save(lost(launch, str(exc), now_s=clock.now_s()))
        raise
    launch = seen(launch, state, now_s=clock.now_s())
    records.save(launch)
    return launch


def take_down(
    launch: Launch, remote: Remote, *, records: Records, clock: Clock, tell: Callable[[str], None]
) -> Launch:
    """Take a launch's cluster down.

    Raises:
        LaunchError: something may still be paid for.
    """
    tell(f"taking cluster {launch.cluster_name} down")
    remote.down()
    launch = dataclasses.replace(launch, down_at_s=clock.now_s())
    if not launch.is_over:
        launch = lost(launch, "its cluster was taken down", now_s=clock.now_s())
    records.save(launch)
    return launch


def exit_code(launch: Launch) -> int:
    """What `spotray launch` ends with: the job's own code, where it has one."""
    if launch.state == "succeeded":
        return 0
    if launch.state == "stopped":
        return STOPPED_CODE
    if launch.exit_code:
        # A child that died of a signal has a negative one.
        return launch.exit_code if launch.exit_code > 0 else 128 - launch.exit_code
    return LOST_CODE


def seen(launch: Launch, state: JobState, *, now_s: float) -> Launch:
    """The launch with what was just seen of its job."""
    return dataclasses.replace(
        launch,
        state=state.state,
        exit_code=state.exit_code,
        message=state.message if state.state == "failed" else "",
        ended_at_s=(launch.ended_at_s or now_s) if state.is_over else None,
    )


def lost(launch: Launch, why: str, *, now_s: float) -> Launch:
    """The launch whose job nobody will hear of again."""
    return dataclasses.replace(launch, state="lost", message=why, ended_at_s=now_s)


def entrypoint(planned: Plan) -> str:
    """The command that Ray's job server runs on the head."""
    command = shlex.join(_command(planned.wishes.command))
    wishes = planned.wishes
    if not (wishes.down or wishes.deadline_s or wishes.max_cost_usd):
        return command
    words = ["python", "-m", "spotray.launch.supervise"]
    if wishes.deadline_s is not None:
        words += ["--deadline-s", f"{wishes.deadline_s:.0f}"]
    if wishes.max_cost_usd is not None:
        words += ["--max-cost-usd", f"{wishes.max_cost_usd:g}", "--rates", _rates(planned.estimate)]
    if wishes.down:
        words += ["--down-after-s", f"{_DOWN_AFTER_S:g}"]
    return f"{shlex.join(words)} -- {command}"


def job_environment(wishes: Wishes, launch: Launch) -> dict[str, str]:
    """The variables of the job, on all its nodes; the user's own win.

    One run of Weights & Biases goes on over all restarts of a launch: its id is made here.
    """
    env = {LAUNCH: launch.name, "WANDB_RUN_ID": launch.wandb_run_id, "WANDB_RESUME": "allow"}
    if wishes.deadline_s is not None:
        env[DEADLINE] = f"{wishes.deadline_s:.0f}"
    if wishes.max_cost_usd is not None:
        env[MAX_COST] = f"{wishes.max_cost_usd:g}"
    return env | dict(wishes.env)


def _written_down(
    cluster_name: str, file: Path, wishes: Wishes, records: Records, *, now_s: float
) -> Launch:
    if wishes.name and not NAME.fullmatch(wishes.name):
        raise ConfigError(f"--name {wishes.name!r}: use letters, digits, '.', '_' and '-'")
    name = wishes.name or records.free_name(Path(wishes.command[0]).stem)
    before = records.get(name)
    if before is not None and not before.is_over:
        raise ConfigError(
            f"launch {name} was {before.state} when it was last looked at: `spotray status {name}` "
            f"looks again, `spotray stop {name}` ends it; or give another --name"
        )
    return Launch(
        name=name,
        cluster_name=cluster_name,
        cluster_file=str(file.resolve()),
        submission_id=f"{name}-{secrets.token_hex(4)}",
        command=wishes.command,
        workdir=str(wishes.workdir.resolve()),
        created_at_s=now_s,
        down=wishes.down,
        deadline_s=wishes.deadline_s,
        max_cost_usd=wishes.max_cost_usd,
        env_names=tuple(sorted(wishes.env)),
        wandb_run_id=wishes.env.get("WANDB_RUN_ID")
        or (before.wandb_run_id if before else f"{name}-{secrets.token_hex(4)}"),
        restarts=before.restarts + 1 if before else 0,
    )


def _command(command: Sequence[str]) -> list[str]:
    runner = {".py": "python", ".sh": "bash"}.get(os.path.splitext(command[0])[1])
    if runner is None:
        raise ConfigError(f"{command[0]}: give a Python script (.py) or one of the shell (.sh)")
    return [runner, *command]


def _rates(costs: Estimate) -> str:
    """The highest prices, as `spotray.launch.supervise` takes them."""
    kinds: dict[str, dict[str, float]] = {"spot": {}, "on_demand": {}}
    for one in costs.types:
        for kind, price in (("spot", one.spot), ("on_demand", one.on_demand)):
            if price is not None:
                kinds[kind][one.name] = price.high_usd_per_hour
    return json.dumps(kinds)


def _wait_for(server: JobServer, *, clock: Clock) -> None:
    give_up_s = clock.now_s() + _CONNECT_S
    while True:
        try:
            return server.connect()
        except ClusterUnreachable:
            if clock.now_s() >= give_up_s:
                raise
            clock.sleep(1.0)


def _all(problems: Sequence[Problem], file: Path) -> str:
    count = len(problems)
    head = "a problem" if count == 1 else f"{count} problems"
    return f"{file} has {head}: {'; '.join(f'({n}) {one}' for n, one in enumerate(problems, 1))}"
