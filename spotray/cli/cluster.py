"""``spotray cluster``: write a cluster's YAML, check any, and what belongs to its life."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotray.cli import cluster_bake, cluster_disks, cluster_up

if TYPE_CHECKING:
    from spotray.cluster.spec import ClusterSpec
    from spotray.cluster.validate import Verdict

_MADE_BY = "# Rendered by: "  # how a file begins that may be written over


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "cluster",
        help="write the YAML of a cluster, check one, bring it up and down",
        description="Write the YAML of a cluster for `ray up`, check any, prepare an account, "
        "bring a cluster up and take it down.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_new(commands)
    _add_validate(commands)
    one = commands.add_parser(
        "prepare",
        help="make the roles and placement groups that a YAML names (AWS, once)",
        description="Make on AWS what a YAML names and `ray up` does not make: the instance "
        "profiles spotray-head and spotray-worker, placement groups. What is there stays.",
    )
    one.add_argument("file", metavar="FILE", help="the cluster's YAML")
    one.set_defaults(run=run_prepare)
    cluster_up.add_parser(commands)
    cluster_disks.add_parser(commands)
    cluster_bake.add_parser(commands)


def _add_new(commands: Any) -> None:
    from spotray.cluster.presets import NAMES

    one = commands.add_parser(
        "new",
        help="write the YAML of a cluster",
        description=f"Write the YAML of a cluster. Known are: {', '.join(NAMES)}.",
    )
    add = one.add_argument
    add("words", metavar="WORD", nargs="*", help="which: aws g5 spot, or aws-g5-spot")
    add("--spec", metavar="FILE", help="a TOML spec instead of words")
    add("--storage", metavar="URL", help="folder in your bucket, s3://BUCKET/PATH")
    add("--name", help="of the cluster")
    add("--region", help="another one; its first zones, unless --zones says which")
    add("--zones", help="by commas, best first")
    add("--workers", metavar="N", type=int, help="most workers of each pool")
    add("--data-disk", metavar="GB", type=int, help="each worker's disk that outlives it, at /data")
    add("--project", help="GCP: the id of your project")
    add("--package", metavar="WHAT", help="what nodes install: a requirement, or a checkout")
    add("--toml", action="store_true", help="print the spec, to be changed and given to --spec")
    add("-o", "--output", metavar="FILE", help="where to (default: print it)")
    one.set_defaults(run=run_new)


def _add_validate(commands: Any) -> None:
    one = commands.add_parser(
        "validate",
        help="say all that is wrong with the YAML of clusters",
        description="Say all that is wrong with the YAML of clusters, each with its place and "
        "its cure. Without --online nothing is asked of a cloud: on an emulated account, `ray "
        "up` is rehearsed. With it, your account is asked too: credentials, quotas, zones, "
        "types, images, buckets, rights, and a cluster of that name; nothing is rented.",
    )
    one.add_argument("files", metavar="FILE", nargs="+")
    one.add_argument("--json", action="store_true", help="print the result objects")
    one.add_argument(
        "--quick", action="store_true", help="without the rehearsal, which takes seconds a file"
    )
    one.add_argument("--online", action="store_true", help="ask the cloud as well (AWS, GCP)")
    one.add_argument(
        "--write-probe",
        action="store_true",
        help="with --online: write a small object into each bucket, and delete it",
    )
    one.set_defaults(run=run_validate)


def run_new(args: argparse.Namespace) -> int:
    """Write a YAML, or a spec."""
    from spotray.cluster.render import render

    chosen = _chosen(args)
    if chosen is None:
        return 1
    spec = _changed(chosen, args)
    if args.toml:
        print(spec.to_toml(), end="")
        return 0
    text = render(spec, made_by=made_by(args), file=args.output or f"{spec.name}.yaml")
    if args.output is None:
        print(text, end="")
        return 0
    _write(Path(args.output), text)
    print(f"{args.output}: {spec.name}, up to {spec.max_workers} workers", file=sys.stderr)
    return 0


def run_validate(args: argparse.Namespace) -> int:
    """Check files; 1 if one is wrong."""
    from spotray.cli.tables import print_json
    from spotray.cluster.validate import validate
    from spotray.errors import ConfigError

    if args.write_probe and not args.online:
        raise ConfigError("--write-probe asks the cloud: say --online too")
    verdicts = validate(
        {file: _text(file) for file in args.files},
        rehearsal=not args.quick,
        online=args.online,
        write_probe=args.write_probe,
    )
    if args.json:
        print_json(verdicts)
    else:
        for verdict in verdicts:
            _show(verdict)
    return int(any(one.is_wrong for one in verdicts))


def run_prepare(args: argparse.Namespace) -> int:
    """Make what a file needs."""
    import yaml

    from spotray.cluster.prepare import needs_of, prepare
    from spotray.errors import ConfigError

    try:
        config = yaml.safe_load(_text(args.file))
    except yaml.YAMLError as exc:
        raise ConfigError(f"{args.file} is no YAML: {exc}") from exc
    for line in prepare(needs_of(config)):
        print(line)
    return 0


def made_by(args: argparse.Namespace) -> str:
    """The command that these arguments came from, as one would write it."""
    words = ["spotray", "cluster", "new", *(["-".join(args.words)] if args.words else [])]
    for name in (
        *("spec", "storage", "name", "region", "zones", "workers"),
        *("data_disk", "project", "package"),
    ):
        if (value := getattr(args, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, *(["-o", args.output] if args.output else [])])


def _chosen(args: argparse.Namespace) -> ClusterSpec | None:
    """The spec, or None if its file is wrong, which was told then."""
    from spotray.cluster.presets import NAMES, preset
    from spotray.cluster.spec import read_toml
    from spotray.errors import ConfigError

    if bool(args.words) == bool(args.spec):
        raise ConfigError(f"say which cluster: {', '.join(NAMES)}; or give --spec FILE")
    if args.spec:
        spec, problems = read_toml(_text(args.spec))
        for problem in problems:
            print(f"{args.spec}: {problem}", file=sys.stderr)
        return spec
    return preset("-".join(args.words))


def _changed(spec: ClusterSpec, args: argparse.Namespace) -> ClusterSpec:
    """The spec with what the options say."""
    changes: dict[str, Any] = {
        name: getattr(args, name)
        for name in ("storage", "name", "region", "project", "package")
        if getattr(args, name) is not None
    }
    if args.zones is not None:
        changes["zones"] = tuple(zone.strip() for zone in args.zones.split(","))
    elif args.region is not None:
        # The same letters: most regions have them, and `validate` knows which have not.
        changes["zones"] = tuple(zone.replace(spec.region, args.region) for zone in spec.zones)
    if args.workers is not None:
        changes["workers"] = tuple(
            dataclasses.replace(
                one,
                max_workers=args.workers,
                min_workers=min(one.min_workers, args.workers),
            )
            for one in spec.workers
        )
    if args.data_disk is not None:
        pools = changes.get("workers", spec.workers)
        changes["workers"] = tuple(
            dataclasses.replace(one, data_disk_gb=args.data_disk) for one in pools
        )
    if args.package is None and not args.spec:
        changes["package"] = _package(spec)
    return dataclasses.replace(spec, **changes)


def _package(spec: ClusterSpec) -> str:
    """Where nodes get spotray from: the checkout that one stands in, or that this one is of."""
    from spotray import __version__

    home = Path(__file__).parents[2]
    if _is_checkout(Path(".")):
        return "."
    if _is_checkout(home):
        return str(home)
    extra = f"[{spec.cloud}]" if spec.cloud != "azure" else ""
    return f"spotray{extra}=={__version__}"


def _is_checkout(folder: Path) -> bool:
    return (folder / "pyproject.toml").is_file() and (folder / "spotray/__init__.py").is_file()


def _write(path: Path, text: str) -> None:
    """Write over a file only if it was rendered too.

    Raises:
        ConfigError: it was not, or cannot be written.
    """
    from spotray.errors import ConfigError

    if path.exists() and not _text(str(path)).startswith(_MADE_BY):
        raise ConfigError(f"{path} was not rendered by this command: name another file")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written: {exc.strerror}") from exc


def _text(file: str) -> str:
    from spotray.errors import ConfigError

    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{file} cannot be read: {exc}") from exc


def _show(verdict: Verdict) -> None:
    for one in verdict.problems:
        kind = "warning: " if one.is_warning else ""
        print(f"{verdict.file}: {kind}{one}")
    if verdict.is_wrong:
        return
    launched = ", ".join(f"{name} {market}" for name, market in verdict.launched.items())
    told = f"would launch {launched}" if launched else verdict.not_done
    print(f"{verdict.file}: fine; {told}")
