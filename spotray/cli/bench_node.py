"""``spotray bench-node``: how many samples this machine trains in a second."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotray.errors import ConfigError, MetadataError

if TYPE_CHECKING:
    from spotray.plan.rates import Rate
    from spotray.train.bench import Speed

_ASK_S = 1.0  # a metadata service that is there answers in milliseconds


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "bench-node",
        help="how many samples this machine trains in a second",
        description="Train for some seconds on all GPUs of this machine, and keep the rate for "
        "`spotray plan` (in ~/.local/share/spotray/rates.json).",
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--model", default="", metavar="NAME", help="of timm; default: vit_small_patch16_224"
    )
    what.add_argument(
        "script",
        nargs="?",
        type=Path,
        metavar="SCRIPT",
        help="a Python file with step(), which trains one step and returns its samples",
    )
    parser.add_argument("--batch-size", type=int, default=32, help="default: %(default)d a GPU")
    parser.add_argument("--image-size", type=int, help="pixels; default: the model's own")
    parser.add_argument("--workers", type=int, default=0, help="default: one for each GPU")
    parser.add_argument("--seconds", type=float, default=20.0, help="default: %(default)g")
    parser.add_argument(
        "--warmup", type=float, default=5.0, metavar="SECONDS", help="default: %(default)g"
    )
    parser.add_argument(
        "--type",
        default="",
        metavar="CLOUD/TYPE",
        help="what this machine is, aws/g5.xlarge; default: as its metadata service says",
    )
    parser.add_argument("--no-keep", action="store_true", help="only print the rate")
    parser.add_argument("--json", action="store_true", help="print the result object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, keep and print."""
    from spotray.cli.tables import print_json
    from spotray.market import catalog
    from spotray.plan.rates import Rate, keep_rate, rates_file
    from spotray.train.bench import ModelJob, bench_model, bench_script

    cloud, name = machine(args.type)
    if args.script is not None:
        model = args.script.name
        speed = bench_script(args.script, seconds=args.seconds, warmup_s=args.warmup)
    else:
        model = args.model or "vit_small_patch16_224"
        job = ModelJob(model=model, batch_size=args.batch_size, image_size=args.image_size)
        speed = bench_model(job, seconds=args.seconds, warmup_s=args.warmup, workers=args.workers)
    kind = catalog.find(cloud, name)
    on_gpu = speed.device != "cpu"
    if kind is not None and kind.gpus and not on_gpu and not args.no_keep:
        raise ConfigError(
            f"{name} has {kind.gpus} {kind.gpu}, and torch sees no GPU here: a rate of its CPU "
            "would mislead: mend the driver, or say --no-keep"
        )
    rate = Rate(
        model=model,
        cloud=cloud,
        instance_type=name,
        gpu=kind.gpu if kind else (speed.device if on_gpu else ""),
        gpus=kind.gpus if kind else (speed.workers if on_gpu else 0),
        samples_per_s=speed.samples_per_s,
        low_samples_per_s=speed.low_samples_per_s,
        high_samples_per_s=speed.high_samples_per_s,
        at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    )
    if not args.no_keep:
        keep_rate(rate, rates_file())
    if args.json:
        print_json({"rate": rate, "speed": speed})
    else:
        _show(rate, speed, kept="" if args.no_keep else str(rates_file()))
    return 0


def machine(said: str) -> tuple[str, str]:
    """Cloud and instance type: as they were said, or as this machine's metadata service has it.

    A machine of no cloud has its own name, and no cloud.

    Raises:
        ConfigError: what was said is not CLOUD/TYPE.
    """
    from spotray.market.catalog import CLOUDS

    if said:
        cloud, _, name = said.partition("/")
        if cloud not in CLOUDS or not name:
            raise ConfigError(f"--type {said!r}: write CLOUD/TYPE, as aws/g5.xlarge")
        return cloud, name
    return asked() or ("", platform.node() or "this machine")


def asked(**endpoints: str) -> tuple[str, str] | None:
    """Cloud and type as the first metadata service that answers says; None if none does.

    ``endpoints``: where each cloud's is, by its name; default: where the clouds have them.
    """
    from spotray.cloud.aws.notices import AwsNotices
    from spotray.cloud.azure.notices import AzureNotices
    from spotray.cloud.gcp.notices import GcpNotices

    def at(cloud: str) -> dict[str, Any]:
        return {"timeout_s": _ASK_S} | (
            {"endpoint": endpoints[cloud]} if cloud in endpoints else {}
        )

    ask: dict[str, Callable[[], str]] = {
        "aws": lambda: AwsNotices(**at("aws")).identity().instance_type,
        "gcp": lambda: GcpNotices(**at("gcp")).identity().machine_type,
        "azure": lambda: AzureNotices(**at("azure")).identity().vm_size,
    }
    for cloud, question in ask.items():
        try:
            return cloud, question()
        except MetadataError:
            continue  # another cloud's machine, or none's
    return None


def _show(rate: Rate, speed: Speed, *, kept: str) -> None:
    where = f"{rate.cloud}/{rate.instance_type}" if rate.cloud else rate.instance_type
    workers = f"{speed.workers} worker{'s' if speed.workers > 1 else ''}"
    print(f"{rate.model} on {where} ({speed.device}, {workers})")
    print(
        f"{speed.samples_per_s:.1f} samples/s, of {speed.rounds} rounds 8 within "
        f"{speed.low_samples_per_s:.1f} - {speed.high_samples_per_s:.1f} ({speed.steps} steps)"
    )
    if kept:
        print(f"kept for `spotray plan` in {kept}")
