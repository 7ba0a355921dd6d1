"""``spotray cluster up`` and ``down``: `ray up` and `ray down`, with what they leave undone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Register both commands."""
    one = commands.add_parser(
        "up",
        help="prepare the account, then `ray up`",
        description="Look for what is wrong with a cluster's YAML, make what it names and `ray "
        "up` does not make (AWS: instance profiles, placement groups), then say `ray up`.",
        epilog="Exit code: that of `ray up`; 1 if the YAML or the account is refused before.",
    )
    _add_common(one)
    one.add_argument("--no-check", action="store_true", help="also where the YAML has problems")
    one.set_defaults(run=run_up)
    one = commands.add_parser(
        "down",
        help="`ray down`, then delete what it leaves",
        description="Say `ray down`, then delete what the cluster had and that leaves: data disks "
        "without a node, but for those with keep_after_down, and placement groups that "
        "`prepare` made. The instance profiles stay: they cost nothing, and other clusters "
        "have the same.",
        epilog="Exit code: that of `ray down`, which is followed by nothing if it is not 0; 1 if "
        "something stays.",
    )
    _add_common(one)
    one.set_defaults(run=run_down)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the cluster's YAML")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def run_up(args: argparse.Namespace) -> int:
    """Bring a cluster up."""
    from spotray.cluster.node_types import cloud_of
    from spotray.cluster.prepare import needs_of, prepare
    from spotray.cluster.validate import validate
    from spotray.launch.launch import read_cluster
    from spotray.launch.remote import run_on_terminal

    text, config = read_cluster(Path(args.file))
    (verdict,) = validate({args.file: text}, rehearsal=False)
    for problem in verdict.problems:
        kind = "warning: " if problem.is_warning else ""
        print(f"{args.file}: {kind}{problem}", file=sys.stderr)
    if verdict.is_wrong and not args.no_check:
        return 1
    if cloud_of(config) == "aws":
        for line in prepare(needs_of(config)):
            print(line, flush=True)  # before what `ray up` says
    code = run_on_terminal("up", *_yes(args), args.file)
    if code:
        print(
            f"spotray: `ray up` ended with {code}: nodes that it launched are paid for until "
            f"`spotray cluster down {args.file}`",
            file=sys.stderr,
        )
    return code


def run_down(args: argparse.Namespace) -> int:
    """Take a cluster down."""
    from spotray.clock import SystemClock
    from spotray.cluster.leftovers import remove_leftovers
    from spotray.launch.launch import read_cluster
    from spotray.launch.remote import run_on_terminal

    _, config = read_cluster(Path(args.file))
    code = run_on_terminal("down", *_yes(args), args.file)
    if code:
        print(
            f"spotray: `ray down` ended with {code}: nodes may still be paid for, and nothing "
            "else was deleted",
            file=sys.stderr,
        )
        return code
    stay = 0
    for one in remove_leftovers(config, clock=SystemClock()):
        stay += bool(one.stays)
        print(one, flush=True)
    return int(stay > 0)


def _yes(args: argparse.Namespace) -> tuple[str, ...]:
    return ("-y",) if args.yes else ()
