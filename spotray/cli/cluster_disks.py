"""``spotray cluster disks``: what disks a cluster has, what they cost, and an end to them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotray.cluster.disks.owned import OwnedDisk, Place


def add_parser(commands: Any) -> None:
    """Register the command and its own commands."""
    parser = commands.add_parser(
        "disks",
        help="list or delete the data disks of a cluster",
        description="The data disks of a cluster: they outlive its nodes, and cost until they are "
        "deleted. The head deletes those that no node used for long, `ray down` all of them.",
    )
    own = parser.add_subparsers(metavar="COMMAND", required=True)
    one = own.add_parser("list", help="say which there are, how old and at what cost")
    _add_place(one)
    one.add_argument("--json", action="store_true", help="print the result objects")
    one.set_defaults(run=run_list)
    one = own.add_parser("delete", help="delete those that no node has")
    _add_place(one)
    one.add_argument(
        "--unused-hours",
        metavar="H",
        type=float,
        default=0.0,
        help="only those that no node has had for so long",
    )
    one.add_argument("-y", "--yes", action="store_true", help="do not ask")
    one.set_defaults(run=run_delete)


def _add_place(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("cluster", metavar="CLUSTER", help="its YAML, or its name beside --region")
    add("--region", help="where it is, if its YAML is not at hand")
    add("--project", help="GCP: the id of the project")


def run_list(args: argparse.Namespace) -> int:
    """Print a cluster's disks."""
    from spotray.cli.tables import print_json, print_table, usd

    place = _place(args)
    _, found = _found(place)
    if args.json:
        print_json(found)
        return 0
    rows = [
        (
            one.disk.disk_id,
            one.disk.slot,
            one.disk.zone,
            f"{one.disk.size_gib} GiB {one.disk.type}",
            f"on {one.disk.node}" if one.disk.node else f"unused for {one.unused_hours:.1f} h",
            "?" if one.usd_per_month is None else usd(one.usd_per_month),
        )
        for one in found
    ]
    if not rows:
        print(f"{place.cluster} has no disks in {place.region}")
        return 0
    title = f"Disks of {place.cluster}, {usd(_total(found))} a month in all, at list price"
    print_table(title, ("disk", "slot", "zone", "size", "state", ">a month"), rows)
    return 0


def run_delete(args: argparse.Namespace) -> int:
    """Delete a cluster's disks that no node has; 1 if one of them stays."""
    from spotray.cli.tables import usd
    from spotray.cluster.disks.owned import delete, plainly, unused

    place = _place(args)
    disks, found = _found(place)
    chosen = unused(found, hours=args.unused_hours)
    for one in found:
        if one.disk.node:
            print(f"{one.disk.disk_id} stays: {one.disk.node} has it")
    if not chosen:
        print(f"nothing to delete of {place.cluster} in {place.region}")
        return 0
    size_gib = sum(one.disk.size_gib for one in chosen)
    cost = usd(_total(chosen))
    question = f"delete {len(chosen)} disks of {place.cluster}, {size_gib} GiB, {cost} a month"
    if not args.yes and not _agrees(question):
        return 1
    stay = 0
    with plainly(place):
        for one, why in delete(disks, chosen):
            stay += bool(why)
            print(f"{one.disk.disk_id} {'stays: ' + why if why else 'deleted'}")
    return int(stay > 0)


def _found(place: Place) -> tuple[Any, list[OwnedDisk]]:
    from spotray.clock import SystemClock
    from spotray.cluster.disks.owned import open_disks, owned, plainly

    with plainly(place):
        disks = open_disks(place)
        return disks, owned(disks, place.cluster, now_s=SystemClock().now_s())


def _place(args: argparse.Namespace) -> Place:
    import yaml

    from spotray.cluster.disks.owned import Place, place_of
    from spotray.errors import ConfigError

    path = Path(args.cluster)
    if path.is_file():
        try:
            config = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
            raise ConfigError(f"{path} cannot be read: {exc}") from exc
        return place_of(config if isinstance(config, dict) else {})
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError(f"there is no {path}: name the cluster's YAML, or the cluster itself")
    if not args.region:
        raise ConfigError(f"where is {args.cluster}? Add --region, or give its YAML instead")
    return Place(
        cluster=args.cluster,
        cloud="gcp" if args.project else "aws",
        region=args.region,
        project=args.project or "",
    )


def _total(found: list[OwnedDisk]) -> float:
    return sum(one.usd_per_month or 0.0 for one in found)


def _agrees(question: str) -> bool:
    from spotray.errors import ConfigError

    if not sys.stdin.isatty():
        raise ConfigError(f"{question}? Nobody is there to answer: add --yes")
    return input(f"{question}? [y/N] ").strip().lower() in ("y", "yes")
