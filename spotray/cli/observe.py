"""``spotray observe OUT``: how spot stands in a region, hour after hour, as traces to simulate."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotray.cloud.observe import Look, Watch
    from spotray.events import SpotObserved
    from spotray.ledger.journal import JournalWriter
    from spotray.ledger.observed import Part
    from spotray.storage import Store

_JOURNAL, _AVAILABILITY, _PRICES = "journal", "availability", "prices"
_EVERY_MINUTES = 10.0


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "observe",
        help="record how spot stands in a region for days, as traces that `simulate` reads",
        description="Ask AWS (placement scores, prices, dry runs of RunInstances) or GCP (capacity "
        "advice, prices, preemption rates) every few minutes how spot stands in each zone, and "
        "write it down. Nothing is launched and nothing is billed. A guess of the cloud is no "
        "launch: the traces say when it called spot likely. Ctrl-C ends it; the same command "
        "goes on.",
        epilog="OUT/availability and OUT/prices have one trace for each zone, in parts where "
        "nobody looked for long: spotray simulate OUT/availability; spotray simulate --fleet "
        "OUT/availability/part-01 --prices OUT/prices/part-01.",
        allow_abbrev=False,
    )
    parser.add_argument("out", metavar="OUT", help="folder or URL, which is made or gone on with")
    parser.add_argument("--cloud", choices=("aws", "gcp"))
    parser.add_argument("--region", default="", help="us-east-1, us-central1 ...")
    parser.add_argument(
        "--type",
        action="append",
        default=[],
        metavar="NAME",
        dest="types",
        help="a machine type, any of which will do; repeat it: AWS wants at least 3",
    )
    parser.add_argument("--gpu", default="", help="all types with it: T4, L4, A10G, A100 ...")
    parser.add_argument("--gpus", type=int, metavar="N", help="with so many of it")
    parser.add_argument("--nodes", type=int, metavar="N", help="at a time; default: 1")
    parser.add_argument(
        "--every", type=float, metavar="MINUTES", help="default: as before in OUT, at first 10"
    )
    parser.add_argument(
        "--for", type=float, metavar="HOURS", dest="hours", help="default: until Ctrl-C"
    )
    parser.add_argument(
        "--likely",
        type=float,
        default=0.5,
        metavar="PART",
        help="from which chance on the nodes count as there, 0 to 1; default: %(default)g",
    )
    parser.add_argument("--no-dry-runs", action="store_true", help="leave them out")
    parser.add_argument(
        "--traces-only",
        action="store_true",
        help="ask nothing: write the traces anew, with another --likely or --every perhaps",
    )
    parser.add_argument("--json", action="store_true", help="print each look as a line of JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look until the end, and write down each look at once."""
    from spotray.clock import SystemClock
    from spotray.cloud.observe import looks, probe_of
    from spotray.events import SpotObserved
    from spotray.ledger.journal import JournalWriter, read_journal
    from spotray.storage import Store

    _check(args)
    home = Store.at(args.out)
    journal = home.child(_JOURNAL)
    seen = [event for event in read_journal(journal) if isinstance(event, SpotObserved)]
    if args.every is None:
        args.every = seen[-1].every_s / 60 if seen else _EVERY_MINUTES
    traces = _Traces(home, args)
    if args.traces_only:
        traces.write(seen)
        print(json.dumps(_summary(args, seen)) if args.json else _words(args, seen))
        return 0
    watch = _watch(args, seen)
    home.check_writable()
    clock = SystemClock()
    probe = probe_of(watch.cloud, watch.region, clock=clock, dry_runs=not args.no_dry_runs)
    until_s = None if args.hours is None else clock.now_s() + 3600 * args.hours
    told: frozenset[str] = frozenset()
    with JournalWriter(journal, writer=f"observe-{int(time.time() * 1000)}") as out:
        try:
            for look in looks(probe, watch, clock=clock, until_s=until_s):
                for event in look.zones:
                    out.append(event)
                seen += look.zones
                told = _tell(_kept(look, out, traces, seen), told, args)
        except KeyboardInterrupt:
            if not seen:
                raise
    traces.write(seen)  # Ctrl-C may have come between two of them
    print(_words(args, seen), file=sys.stderr)
    return 0


def _kept(look: Look, out: JournalWriter, traces: _Traces, seen: list[SpotObserved]) -> Look:
    """A look that is written down; storage that is away is one problem more, and tried again."""
    from spotray.errors import JournalError

    try:
        out.flush()
        if look.zones:
            traces.write(seen)
    except JournalError as exc:
        words = f"not written yet: {' '.join(str(exc).split())}"
        return dataclasses.replace(look, problems=(*look.problems, words))
    return look


def _check(args: argparse.Namespace) -> None:
    from spotray.errors import ConfigError

    if args.nodes is not None and args.nodes < 1:
        raise ConfigError(f"--nodes is {args.nodes}: give at least 1")
    if args.every is not None and not 1 <= args.every <= 24 * 60:
        raise ConfigError(f"--every is {args.every:g}: give 1 to 1440 minutes")
    if not 0 < args.likely <= 1:
        raise ConfigError(f"--likely is {args.likely:g}: give a part of 1, 0.5 perhaps")
    if args.hours is not None and not args.hours >= 0:
        raise ConfigError(f"--for is {args.hours:g}: give at least 0 hours")


def _watch(args: argparse.Namespace, seen: list[SpotObserved]) -> Watch:
    """What is asked: as it was in OUT before, or else as the options say.

    Raises:
        ConfigError: they do not say it, or other than OUT has it.
    """
    from spotray.cli.prices import gpu_types
    from spotray.cloud.observe import Watch
    from spotray.errors import ConfigError

    types, every_s = tuple(dict.fromkeys(args.types)), 60 * args.every
    if not types and args.gpu and args.cloud:
        types = gpu_types(args.cloud, args)
        if not types:
            raise ConfigError(f"no type of {args.cloud} with {args.gpu} is known: give --type")
    if seen:
        last = seen[-1]
        before = Watch(
            cloud=last.cloud,
            region=last.region,
            types=last.instance_types,
            nodes=last.nodes,
            every_s=every_s,
        )
        wanted = Watch(
            cloud=args.cloud or before.cloud,
            region=args.region or before.region,
            types=before.types if set(types) in (set(), set(before.types)) else types,
            nodes=args.nodes or before.nodes,
            every_s=every_s,
        )
        if wanted != before:
            raise ConfigError(
                f"{args.out} is about {before.nodes} nodes of {', '.join(before.types)} in "
                f"{before.cloud} {before.region}: go on with the same, or give another folder"
            )
        return before
    if not (args.cloud and args.region and types):
        raise ConfigError("say --cloud, --region, and --gpu or --type: what is to be observed?")
    return Watch(
        cloud=args.cloud,
        region=args.region,
        types=types,
        nodes=args.nodes or 1,
        every_s=every_s,
    )


class _Traces:
    """Traces of all that was seen, in the place of those before.

    Written at each look: only those that changed, as what is put into a bucket is paid.
    """

    def __init__(self, home: Store, args: argparse.Namespace) -> None:
        self._home, self._args = home, args
        self._written: dict[str, str] = {}

    def write(self, seen: list[SpotObserved]) -> None:
        """Write them.

        Raises:
            JournalError: storage does not take them; what was seen is in the journal.
        """
        from spotray.errors import JournalError

        wanted = _texts(self._args, seen)
        try:
            if wanted and not self._written:
                self._clear(wanted)
            for name, text in wanted.items():
                if self._written.get(name) != text:
                    self._home.write(name, text.encode())
                    self._written[name] = text
        except OSError as exc:
            raise JournalError(
                f"{self._home.url}: traces cannot be written: {exc}: once they can, say "
                f"`spotray observe {self._args.out} --traces-only`"
            ) from exc

    def _clear(self, wanted: dict[str, str]) -> None:
        """Remove what another --every left: other parts, and zones that a part no longer has."""
        for kind in (_AVAILABILITY, _PRICES):
            for folder in self._home.folders(kind):
                here = f"{kind}/{folder}"
                if not folder.startswith("part-"):
                    continue
                if not any(name.startswith(f"{here}/") for name in wanted):
                    self._home.delete_tree(here)
                    continue
                for name, _ in self._home.list(here):
                    if name not in wanted:
                        self._home.delete(name)


def _texts(args: argparse.Namespace, seen: list[SpotObserved]) -> dict[str, str]:
    """What each file is to hold, by its name in OUT."""
    found: dict[str, str] = {}
    for number, part in enumerate(_parts(args, seen), start=1):
        types = seen[-1].instance_types
        label = types[0] if len(types) == 1 else f"any-of-{len(types)}"
        for zone, trace in part.availability.items():
            found[f"{_AVAILABILITY}/part-{number:02d}/{zone}_{label}.json"] = trace.to_json()
        for zone, trace in part.usd_per_hour.items():
            found[f"{_PRICES}/part-{number:02d}/{zone}.json"] = trace.to_json()
    return found


def _parts(args: argparse.Namespace, seen: list[SpotObserved]) -> list[Part]:
    from spotray.ledger.observed import parts

    return parts(seen, gap_s=60 * args.every, likely=args.likely)


def _tell(look: Look, told: frozenset[str], args: argparse.Namespace) -> frozenset[str]:
    """Show a look; a problem once, until it is gone."""
    from spotray.cli.tables import plain

    if args.json:
        print(json.dumps(plain(look), allow_nan=False), flush=True)
        return told
    at = time.strftime("%H:%M", time.localtime(look.at_s))
    for problem in look.problems:
        if problem not in told:
            print(f"spotray: {at} {problem}", file=sys.stderr, flush=True)
    if look.zones:
        zones = ", ".join(
            f"{one.zone} {f'refused ({one.refused})' if one.refused else f'{one.likely:.0%}'}"
            for one in look.zones
        )
        usd = [one.usd_per_hour for one in look.zones if one.usd_per_hour is not None]
        price = f"; from ${min(usd):.3f} an hour" if usd else ""
        print(f"{at}  {look.zones[0].nodes} spot nodes: {zones}{price}", flush=True)
    return frozenset(look.problems)


def _summary(args: argparse.Namespace, seen: list[SpotObserved]) -> dict[str, Any]:
    """The parts that were written, fit for JSON."""
    return {
        "gap_s": 60 * args.every,
        "parts": [
            {"start_s": part.start_s, "ticks": part.ticks, "zones": sorted(part.availability)}
            for part in _parts(args, seen)
        ],
    }


def _words(args: argparse.Namespace, seen: list[SpotObserved]) -> str:
    """What there is now, in one line."""
    found = _parts(args, seen)
    if not found:
        return f"spotray: nothing was observed yet in {args.out}"
    hours = sum(part.ticks for part in found) * args.every / 60
    zones = {one.zone for one in seen}
    parts = "1 part" if len(found) == 1 else f"{len(found)} parts"
    nodes = f" --nodes {seen[-1].nodes}" if seen[-1].nodes > 1 else ""
    return (
        f"spotray: {len(zones)} zones over {hours:.1f} h in {parts}: "
        f"spotray simulate {args.out.rstrip('/')}/{_AVAILABILITY}{nodes}"
    )
