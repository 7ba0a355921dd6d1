"""``spotray hazards [FOLDER ...]``: how long one's own spot nodes lived, and what that says."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from spotray.errors import ConfigError

if TYPE_CHECKING:
    from spotray.market.hazards import AgeBand, Hazard, Hazards
    from spotray.market.lives import NodeLife

_AGES_H = (1, 4, 24)


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "hazards",
        help="how long your own spot nodes lived, by market, type, age and hour",
        description="Read the journals of runs and clusters, and say how likely a spot node is "
        "lost: by market, type and zone, by age, and by hour of the day. With few lives seen the "
        "answer leans on the next wider group, at last on public traces.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "folders",
        nargs="*",
        metavar="FOLDER",
        help="folders of runs or journals, or above many of them; paths or URLs",
    )
    parser.add_argument(
        "--book",
        metavar="FOLDER",
        help="keep the lives in this folder of storage, and count those that it has from before "
        "and from other clusters",
    )
    parser.add_argument(
        "--market", metavar="CLOUD/ZONE/TYPE/spot", help="tell of this market more closely"
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the hazard against age: .png, .svg or .pdf"
    )
    parser.add_argument("--json", action="store_true", help="print the result object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Gather, keep, fit and print."""
    from spotray.cli.tables import print_json
    from spotray.ledger.lifetimes import Gathered, gather
    from spotray.market.hazards import age_bands, learn
    from spotray.market.lives import LivesBook, merged
    from spotray.market.offer import Market
    from spotray.storage import Store

    if not args.folders and not args.book:
        raise ConfigError("nothing to read: give folders of runs or journals, or a --book")
    market = Market.parse(args.market) if args.market else None
    if market is not None and not market.spot:
        raise ConfigError(f"market {args.market!r}: only spot nodes have a hazard: end it in /spot")
    gathered = gather(args.folders) if args.folders else Gathered(told=(), missing=())
    lives = [one for told in gathered.told for one in told.lives]
    if args.book:
        book = LivesBook(Store.at(args.book))
        for told in gathered.told:
            if told.lives:
                book.put(told.source, told.lives)
        lives += book.lives()
    lives = merged(lives)
    hazards = learn(lives)
    hazard = _of_all(hazards) if market is None else hazards.of(market)
    bands = age_bands(one.life for one in lives if _is_of(one, hazard.name))
    if args.plot:
        from spotray.report.hazards import plot_hazard

        plot_hazard(args.plot, hazard, bands)
    if args.json:
        print_json(
            {
                "levels": hazards.levels,
                "by_age": bands,
                "by_hour": hazards.hours,
                "missing": gathered.missing,
            }
        )
        return 0
    _show(hazards, hazard, bands)
    for missing in gathered.missing:
        print(f"warning: {missing}")
    if args.plot:
        print(f"\nplot of {hazard.name}: {args.plot}")
    return 0


def _of_all(hazards: Hazards) -> Hazard:
    """The narrowest level that all lives are of: a cloud knows of its limit, all spot of none."""
    every = hazards.levels["all spot"].lives
    return [one for one in hazards.levels.values() if one.lives == every][-1]


def _is_of(one: NodeLife, name: str) -> bool:
    """Whether a life is of a level of `Hazards`."""
    cloud, zone, kind, _ = one.market.split("/")
    return name in ("all spot", cloud, f"{cloud}/{kind}", f"{cloud}/{zone}/{kind}")


def _show(hazards: Hazards, hazard: Hazard, bands: list[AgeBand]) -> None:
    from spotray.cli.tables import print_table

    if not hazards.levels["all spot"].lives:
        print("no spot node was seen: what follows is the prior, from public traces")
    print_table(
        "Spot nodes, and how many live longer than ... (95 % confidence)",
        [
            "spot nodes of",
            ">nodes",
            ">lost",
            ">node-hours",
            ">shape",
            *(f">{age} h" for age in _AGES_H),
        ],
        [_row(one) for one in hazards.levels.values()],
    )
    if any(math.isfinite(one.fit.limit_s) for one in hazards.levels.values()):
        print("Google stops preemptible machines after 24 h: nobody here lived longer.")
    if bands:
        print()
        print_table(
            f"Losses per hour by age, {hazard.name}",
            [">age", ">nodes lost", ">node-hours", ">seen", ">95 %", ">fit"],
            [_band_row(one, hazard) for one in bands],
        )
    for region, factors in hazards.hours.items():
        if not any(one.losses for one in factors):
            continue
        print()
        print_table(
            f"Losses by hour of the day (UTC), {region}: 1 is as at any other hour",
            [">hours", ">lost", ">expected", ">factor", ">95 %"],
            [
                [
                    f"{one.from_hour}-{one.to_hour}",
                    str(one.losses),
                    f"{one.expected:.1f}",
                    f"{one.factor:.2f}",
                    f"{one.low:.2f}-{one.high:.2f}",
                ]
                for one in factors
            ],
        )


def _row(one: Hazard) -> list[str]:
    cells = [one.name, str(one.lives), str(one.losses), f"{one.node_hours:.1f}"]
    cells.append(f"{one.fit.shape:.2f}")
    for age_h in _AGES_H:
        low, high = one.fit.alive_range(age_h * 3600.0)
        share = one.fit.alive_frac(age_h * 3600.0)
        cells.append(f"{100 * share:.0f} % ({100 * low:.0f}-{100 * high:.0f})")
    return cells


def _band_row(one: AgeBand, hazard: Hazard) -> list[str]:
    from spotray.market.hazards import HOUR_S

    low_h, high_h = one.from_s / HOUR_S, one.to_s / HOUR_S
    middle_s = one.from_s + min(one.to_s - one.from_s, max(one.from_s, HOUR_S)) / 2
    until = f"{low_h:g}-{high_h:g} h" if math.isfinite(high_h) else f"over {low_h:g} h"
    fit = hazard.fit.hazard_per_hour(middle_s)
    return [
        until,
        str(one.losses),
        f"{one.node_hours:.1f}",
        f"{one.hazard_per_hour:.3f}",
        f"{one.low_per_hour:.3f}-{one.high_per_hour:.3f}",
        f"{fit:.3f}" if math.isfinite(fit) else "",
    ]
