"""``spotray stop NAME``: end a launched job, and its cluster if you say so."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "stop",
        help="end a launched job, and its cluster with --down",
        description="Stop a job of `spotray launch`. Its cluster stays up, unless the launch or "
        "this command says --down; that also takes the cluster of a job down that is over.",
    )
    parser.add_argument("name", metavar="NAME", help="of the launch: `spotray jobs` lists them")
    parser.add_argument("--down", action="store_true", help="take its cluster down, too")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Stop it."""
    from spotray.cli.jobs import server_of
    from spotray.cli.launch import end_cluster, ending, tell
    from spotray.errors import ClusterUnreachable, LaunchError
    from spotray.launch.launch import lost, seen, take_down
    from spotray.launch.records import Records

    records = Records()
    one = records.need(args.name)
    with server_of(one) as way:
        if one.is_over:
            print(f"job {one.name} is over: {one.state}")
        else:
            try:
                state = way.server.stop(one.submission_id)
                one = seen(one, state, now_s=way.clock.now_s())
            except LaunchError as exc:
                one = lost(one, str(exc), now_s=way.clock.now_s())
            except ClusterUnreachable:
                if not args.down:
                    raise
                tell("the head does not answer: its job ends with the cluster")
            records.save(one)
            print(ending(one))
        if args.down:
            take_down(one, way.remote, records=records, clock=way.clock, tell=tell)
        elif one.down and one.down_at_s is None:
            end_cluster(one, way.remote, way.server, records=records)
    return 0
