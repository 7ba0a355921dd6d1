"""``spotray launch CLUSTER.yaml SCRIPT``: a cluster, a job on it, its log and its exit code."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotray.launch.jobs import JobServer
    from spotray.launch.launch import Plan, Wishes
    from spotray.launch.records import Launch, Records
    from spotray.launch.remote import Remote

DETACHED_CODE = 130


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "launch",
        help="run a script on a cluster: up, job, log, and down again if you say so",
        description="Bring a cluster up (or use the one that runs), upload the working folder, "
        "run a script on the head and show its log. The job goes on if this machine sleeps or "
        "the connection breaks. What it may cost is shown, and asked about, first.",
        epilog="Exit codes: the job's own; 1 if it has none or a launch is refused, 2 usage, 75 "
        "deadline or budget reached, 130 left running after Ctrl-C, 143 stopped.",
    )
    parser.add_argument("cluster", metavar="CLUSTER.yaml", help="as `ray up` takes it")
    parser.add_argument("script", metavar="SCRIPT", help="in the working folder: .py or .sh")
    parser.add_argument(
        "arguments",
        metavar="ARGS",
        nargs=argparse.REMAINDER,
        help="of the script; options of `launch` may stand before them, or before --",
    )
    _add_options(parser)
    parser.set_defaults(run=run)


def _add_options(parser: argparse.ArgumentParser) -> None:
    def flag(*names: str, help: str) -> None:
        parser.add_argument(*names, action="store_true", help=help)

    add = parser.add_argument
    flag("--dry-run", "--dryrun", help="show costs and plan, and stop there")
    flag("-y", "--yes", help="do not ask")
    flag("--down", help="take the cluster down when the job ends, however")
    flag("-d", "--detach", help="do not wait for the job")
    flag("--no-check", help="launch also where the YAML has problems")
    flag("--json", help="print the result object; the log goes to stderr")
    add("--name", help="of the launch; one that ended is begun again, with its W&B run")
    add("--workdir", metavar="DIR", default=".", help="what is uploaded (default: this folder)")
    add("--env", metavar="K=V", action="append", default=[], help="for the job; K alone: as here")
    add("--env-file", metavar="FILE", action="append", default=[], help="lines K=V")
    add("--deadline", metavar="WHEN", help="6h, or 2026-01-31T18:00+01:00: then the job is stopped")
    add("--max-cost", metavar="USD", help="the job is stopped when so much is spent")
    add("--hours", metavar="H", type=float, help="how long it may take, for the estimate")
    add("--prices", metavar="FILE", help="CSV of prices that win over all others")


_FLAGS = (
    "--dry-run",
    "--dryrun",
    "-y",
    "--yes",
    "--down",
    "-d",
    "--detach",
    "--no-check",
    "--json",
)
_VALUED = (
    "--name",
    "--workdir",
    "--env",
    "--env-file",
    "--deadline",
    "--max-cost",
    "--hours",
    "--prices",
)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands behind the script: options of `launch`, and the script's own arguments.

    Raises:
        ConfigError: an option of ours stands among the script's, and nothing says whose it is.
    """
    from spotray.errors import ConfigError

    if "--" in words:
        at = words.index("--")
        return list(words[:at]), list(words[at + 1 :])
    at = 0
    while at < len(words) and (name := words[at].partition("=")[0]) in (*_FLAGS, *_VALUED):
        at += 2 if name in _VALUED and "=" not in words[at] else 1
    for word in words[at:]:
        if (name := word.partition("=")[0]).startswith("--") and name in (*_FLAGS, *_VALUED):
            raise ConfigError(
                f"{name} stands among the arguments of the script: put it before them if it is "
                "for spotray, or put -- before them if it is the script's"
            )
    return list(words[:at]), list(words[at:])


def run(args: argparse.Namespace) -> int:
    """Launch; the job's exit code."""
    from spotray.cli.prices import own_table
    from spotray.clock import SystemClock
    from spotray.launch.launch import plan, remote_of
    from spotray.launch.records import Records

    ours, args.arguments = split(args.arguments)
    options = argparse.ArgumentParser(prog="spotray launch", allow_abbrev=False)
    _add_options(options)
    options.parse_args(ours, namespace=args)
    records, clock = Records(), SystemClock()
    planned = plan(
        Path(args.cluster),
        _wishes(args, now_s=clock.now_s()),
        prices=own_table(Path(args.prices) if args.prices else None),
        records=records,
        clock=clock,
    )
    return launch(args, planned, remote_of(planned.cluster_file, planned.config), records=records)


def launch(args: argparse.Namespace, planned: Plan, remote: Remote, *, records: Records) -> int:
    """What `run` does with a plan and a way to its cluster."""
    from spotray.cli.launch_plan import show_plan
    from spotray.cli.tables import print_json
    from spotray.clock import SystemClock
    from spotray.launch.jobs import JobServer
    from spotray.launch.launch import bring_up, check_online, packed, submit

    clock = SystemClock()
    plan_goes_to = sys.stdout if args.dry_run and not args.json else sys.stderr
    show_plan(planned, show=lambda line: print(line, file=plan_goes_to))
    if not args.dry_run:
        somebody_to_ask(yes=args.yes)
        for problem in check_online(planned):
            tell(f"warning: {problem}")
    with tempfile.TemporaryDirectory() as place:
        archive = packed(planned, Path(place), tell=tell)
        if args.dry_run:
            if args.json:
                print_json({"estimate": planned.estimate, "launch": planned.launch})
            return 0
        confirm(planned.cluster_name, yes=args.yes)
        with JobServer(remote, clock=clock) as server:
            try:
                bring_up(planned, remote, records=records, tell=tell)
                one = submit(planned, server, archive, records=records, clock=clock)
            except BaseException as exc:
                # Nothing runs there: what was just brought up would be paid for nothing.
                _tell_of_half(planned, remote, exc)
                raise
            tell(f"job {one.name} runs on {one.cluster_name}; {way_back(one)}")
            if args.detach:
                code = 0
            else:
                one, code = watch(one, server, records=records, json=args.json)
            if code != DETACHED_CODE and one.down and one.is_over:
                one = end_cluster(one, remote, server, records=records)
    if args.json:
        print_json(one)
    return code


def watch(
    one: Launch, server: JobServer, *, records: Records, json: bool = False
) -> tuple[Launch, int]:
    """Show the log to the end of the job, or until the user has seen enough."""
    from spotray.clock import SystemClock
    from spotray.errors import LaunchError
    from spotray.launch.launch import exit_code, follow, seen

    out = sys.stderr if json else sys.stdout
    shown = 0

    def show(text: str) -> None:
        nonlocal shown
        out.write(text)
        out.flush()
        shown += len(text)

    clock = SystemClock()
    while True:
        try:
            one = follow(
                one, server, records=records, clock=clock, show=show, tell=tell, skip=shown
            )
            break
        except KeyboardInterrupt:
            match ask_what_now(one.name):
                case "stop":
                    tell(f"stopping {one.name}")
                    state = server.stop(one.submission_id)
                    one = seen(one, state, now_s=clock.now_s())
                    records.save(one)
                    break
                case "leave":
                    tell(f"{one.name} goes on; {way_back(one)}")
                    if one.down:
                        tell("the cluster goes down by itself some minutes after the job's end")
                    return one, DETACHED_CODE
                case _:
                    tell(f"watching {one.name}")
        except LaunchError as exc:  # written down as lost; its cluster may still be paid for
            tell(str(exc))
            one = records.need(one.name)
            break
    tell(ending(one))
    return one, exit_code(one)


def end_cluster(one: Launch, remote: Remote, server: JobServer, *, records: Records) -> Launch:
    """Take the cluster of a launch with ``--down`` down, unless others work there."""
    from spotray.clock import SystemClock
    from spotray.errors import ClusterUnreachable, LaunchError
    from spotray.launch.launch import take_down

    try:
        others = server.running()
    except (ClusterUnreachable, LaunchError):
        others = []  # nobody can work on a head that does not answer
    if others:
        tell(f"cluster {one.cluster_name} stays up: {len(others)} other jobs run there")
        return one
    server.close()
    return take_down(one, remote, records=records, clock=SystemClock(), tell=tell)


def ask_what_now(name: str) -> str:
    """After a Ctrl-C: ``stop``, ``leave`` or ``go on``; a second one leaves."""
    if not sys.stdin.isatty():
        return "leave"
    try:
        tell(f"{name} runs on the cluster, not here.")
        answer = input("[l]eave it running, [s]top it, or [g]o on watching? ").strip().lower()
    except (KeyboardInterrupt, EOFError):
        return "leave"
    return {"s": "stop", "g": "go on"}.get(answer[:1], "leave")


def somebody_to_ask(*, yes: bool) -> None:
    """Look for whom to ask before money is spent.

    Raises:
        ConfigError: nobody is there, and nobody said yes beforehand.
    """
    from spotray.errors import ConfigError

    if not yes and not sys.stdin.isatty():
        raise ConfigError("nobody can be asked whether to spend money: give -y, or --dry-run")


def confirm(cluster_name: str, *, yes: bool) -> None:
    """Ask before money is spent.

    Raises:
        ConfigError: the answer is no.
    """
    from spotray.errors import ConfigError

    if yes:
        return
    tell("")
    try:
        answer = input(f"Launch on {cluster_name}? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was launched")


def tell(line: str) -> None:
    """A line about the launch; stdout is the job's."""
    print(f"spotray: {line}" if line else "", file=sys.stderr, flush=True)


def way_back(one: Launch) -> str:
    """How to see a launch again."""
    return f"`spotray logs {one.name}` shows it again, `spotray stop {one.name}` ends it"


def ending(one: Launch) -> str:
    """How a job ended, in one line."""
    from spotray.cli.tables import duration
    from spotray.launch.supervise import STOPPED_CODE

    took = duration((one.ended_at_s or one.created_at_s) - one.created_at_s)
    if one.exit_code == STOPPED_CODE and (one.deadline_s or one.max_cost_usd):
        return (
            f"job {one.name} was stopped by its deadline or budget after {took}; `spotray launch "
            f"--name {one.name}` begins it again, from what it saved"
        )
    code = "" if one.exit_code in (None, 0) else f" with {one.exit_code}"
    return f"job {one.name} {one.state}{code} after {took}"


def _tell_of_half(planned: Plan, remote: Remote, exc: BaseException) -> None:
    """What is left when a launch broke off on its way."""
    from spotray.errors import ConfigError, SpotrayError

    if isinstance(exc, ConfigError):
        return
    if not planned.wishes.down:
        tell(f"the cluster may be up: `ray down {planned.cluster_file}` takes it down")
        return
    tell(f"taking cluster {planned.cluster_name} down")
    try:
        remote.down()
    except SpotrayError as down:
        tell(str(down))


def _wishes(args: argparse.Namespace, *, now_s: float) -> Wishes:
    from spotray.errors import ConfigError
    from spotray.launch.launch import Wishes
    from spotray.launch.wishes import deadline_s, dollars, environment

    if args.hours is not None and not args.hours > 0:
        raise ConfigError(f"--hours is {args.hours:g}: give a number above 0")
    return Wishes(
        command=(args.script, *args.arguments),
        workdir=Path(args.workdir),
        name=args.name or "",
        env=environment(
            args.env, files={file: _text(file) for file in args.env_file}, shell=os.environ
        ),
        down=args.down,
        deadline_s=deadline_s(args.deadline, now_s=now_s) if args.deadline else None,
        max_cost_usd=dollars(args.max_cost) if args.max_cost else None,
        hours=args.hours,
        check=not args.no_check,
    )


def _text(file: str) -> str:
    from spotray.errors import ConfigError

    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {file}: {getattr(exc, 'strerror', None) or exc}") from exc
