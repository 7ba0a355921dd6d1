"""``spotray jobs``: what was launched from this machine, and how it stood when last seen."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotray.launch.records import Launch
    from spotray.launch.wayback import Wayback


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "jobs",
        help="what was launched from here",
        description="List the jobs of `spotray launch`, and how each stood when it was last "
        "looked at. `spotray status NAME` looks again.",
    )
    parser.add_argument("--json", action="store_true", help="print the result objects")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List them."""
    from spotray.cli.tables import duration, print_json, print_table
    from spotray.launch.records import Records

    launches = Records().all()
    if args.json:
        print_json(launches)
        return 0
    if not launches:
        print("nothing was launched from here: `spotray launch --help`")
        return 0
    now_s = time.time()
    print_table(
        "Launches",
        ["name", "cluster", "state", ">code", ">began", ">took", "command"],
        [
            [
                one.name,
                one.cluster_name + (" (down)" if one.down_at_s else ""),
                one.state,
                "" if one.exit_code is None else str(one.exit_code),
                f"{duration(max(0.0, now_s - one.created_at_s))} ago",
                duration((one.ended_at_s or now_s) - one.created_at_s),
                " ".join(one.command),
            ]
            for one in launches
        ],
    )
    return 0


def run_status(one: Launch, *, json: bool) -> int:
    """Show where one stands, asked of its cluster if it may still run."""
    from spotray.cli.launch import way_back
    from spotray.cli.tables import duration, print_json
    from spotray.errors import ClusterUnreachable
    from spotray.launch.records import Records
    from spotray.launch.wayback import look_again

    unseen = ""
    if not one.is_over:
        records = Records()
        try:
            with server_of(one) as way:
                one = look_again(one, way.server, records=records, clock=way.clock)
        except ClusterUnreachable as exc:
            unseen = str(exc)
    if json:
        print_json({"launch": one, "not_asked": unseen})
        return 0
    now_s = time.time()
    code = "" if one.exit_code is None else f", exit code {one.exit_code}"
    print(f"{one.name}: {one.state}{code}, {' '.join(one.command)} on {one.cluster_name}")
    if unseen:
        print(f"warning     that is how it was last seen; now {unseen}")
    if one.message:
        print(f"why         {one.message}")
    ended = one.ended_at_s
    print(f"time        {duration((ended or now_s) - one.created_at_s)}")
    if one.deadline_s:
        print(
            f"deadline    in {duration(one.deadline_s - now_s)}"
            if one.deadline_s > now_s
            else "deadline    is over"
        )
    if one.wandb_run_id:
        print(f"W&B run     {one.wandb_run_id}")
    if one.down_at_s:
        print("cluster     down")
    elif one.is_over:
        print(f"cluster     may be up: `spotray stop {one.name} --down` takes it down")
    else:
        print(f"next        {way_back(one)}")
    return 0


def server_of(one: Launch) -> Wayback:
    """The job server of a launch's cluster, by the spec that it was brought up with."""
    from spotray.launch.records import Records
    from spotray.launch.wayback import Wayback

    return Wayback.to(one, records=Records())
