"""``spotray cluster bake``: an image of a worker that is set up, so that the next one starts so."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Register the command."""
    one = commands.add_parser(
        "bake",
        help="make an image of a worker that is set up (AWS)",
        description="Make an AMI of a running worker on which all is installed, and print the "
        "line for the YAML. The setup commands then find all there. The image holds what is on "
        "the node, the cluster's token included: keep it private.",
    )
    add = one.add_argument
    add("file", metavar="FILE", help="the cluster's YAML")
    add("--node-type", metavar="NAME", help="of the worker (default: the only one)")
    add("--node", metavar="ID", help="instance id (default: the oldest that is set up)")
    add(
        "--no-reboot",
        action="store_true",
        help="do not stop the node for it; what it writes just then may be torn",
    )
    one.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make the image."""
    from spotray.cloud.aws.images import bake, node_to_bake
    from spotray.cluster.bake import baked_type

    config = _config(args.file)
    worker = baked_type(config, args.node_type)
    node = args.node or node_to_bake(worker.cluster, worker.name, region=worker.region)
    how = "as it runs" if args.no_reboot else "it reboots, and leaves its job for that"
    print(f"an image of {node}: {how}", file=sys.stderr)
    image_id, last = "", ""
    for state in bake(
        node,
        cluster=worker.cluster,
        node_type=worker.name,
        region=worker.region,
        reboot=not args.no_reboot,
    ):
        image_id, told = state.image_id, f"{state.image_id}: {state.state} {state.progress}".strip()
        if told != last:
            print(told, file=sys.stderr)
        last = told
    print(f"in available_node_types.{worker.name}.node_config of {args.file}:", file=sys.stderr)
    print(f"ImageId: {image_id}")
    return 0


def _config(file: str) -> Any:
    import yaml

    from spotray.errors import ConfigError

    try:
        return yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(f"{file} cannot be read: {exc}") from exc
