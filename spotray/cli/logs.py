"""``spotray logs NAME``: what a launched job says, from its start and on to its end."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "logs",
        help="what a launched job says; go on watching it",
        description="Show the log of a job of `spotray launch` from its start, and go on to its "
        "end; the exit code is the job's. Any shell of this user will do.",
    )
    parser.add_argument("name", metavar="NAME", help="of the launch: `spotray jobs` lists them")
    parser.add_argument("--no-follow", action="store_true", help="only what there is now")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show it; take the cluster down behind it, if the launch said so."""
    from spotray.cli.jobs import server_of
    from spotray.cli.launch import DETACHED_CODE, end_cluster, watch
    from spotray.launch.records import Records

    records = Records()
    one = records.need(args.name)
    with server_of(one) as way:
        if args.no_follow:
            sys.stdout.write(way.server.log(one.submission_id))
            return 0
        one, code = watch(one, way.server, records=records)
        if code != DETACHED_CODE and one.down and one.down_at_s is None:
            end_cluster(one, way.remote, way.server, records=records)
    return code
