"""``spotray hazards [FOLDER ...]``: how long one's own spot nodes lived, and what that says."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spotray.errors import ConfigError, JournalError

if TYPE_CHECKING:
    from spotray.ledger.lifetimes import Known
    from spotray.market.hazards import AgeBand, Hazard, Hazards
    from spotray.market.lives import LivesBook, NodeLife

_AGES_H = (1, 4, 24)


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "hazards",
        help="how long your own spot nodes lived, by market, type, age and hour",
        description="Read the journals of runs and clusters, and say how likely a spot node is "
        "lost: by market, type and zone, by age, and by hour of the day. With few lives seen the "
        "answer leans on the next wider group, at last on public traces. What was read is kept: "
        "in the storage path for other clusters, and on this machine for `spotray plan`.",
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
        "and from other clusters; default: the folder `hazards` of each FOLDER",
    )
    parser.add_argument("--no-keep", action="store_true", help="look, and keep nothing")
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
    from spotray.market.hazards import age_bands, learn
    from spotray.market.offer import Market

    market = Market.parse(args.market) if args.market else None
    if market is not None and not market.spot:
        raise ConfigError(f"market {args.market!r}: only spot nodes have a hazard: end it in /spot")
    known = _known(args)
    lives = known.lives
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
                "books": known.books,
                "missing": known.missing,
            }
        )
        return 0
    _show(hazards, hazard, bands)
    for url in known.books:
        print(f"kept in {url}: give it to other clusters and machines as a book")
    for missing in known.missing:
        print(f"warning: {missing}")
    if args.plot:
        print(f"\nplot of {hazard.name}: {args.plot}")
    return 0


def _known(args: argparse.Namespace) -> Known:
    """Read, and keep it where others and the next plan find it."""
    from spotray.ledger.lifetimes import Known, gather, gather_and_keep
    from spotray.market.lives import LivesBook, merged
    from spotray.storage import Store

    own = own_book()
    if not args.folders and not args.book:
        if not (lives := own.lives()):
            raise ConfigError("nothing to read: give folders of runs or journals, or a --book")
        return Known(lives=tuple(lives), books=(), missing=())
    if args.no_keep:
        gathered = gather(args.folders)
        lives = [one for told in gathered.told for one in told.lives]
        if args.book:
            lives += LivesBook(Store.at(args.book)).lives()
        return Known(lives=tuple(merged(lives)), books=(), missing=gathered.missing)
    known = gather_and_keep(args.folders, book=args.book or "")
    if not known.lives:
        return known
    try:
        own.put("; ".join(known.books or args.folders), known.lives)
    except JournalError as exc:
        return replace(known, missing=(*known.missing, f"not kept for `spotray plan`: {exc}"))
    return known


def own_book() -> LivesBook:
    """What `spotray hazards` has seen on this machine; for `spotray plan`."""
    from spotray.folders import user_folder
    from spotray.market.lives import LivesBook
    from spotray.storage import Store

    return LivesBook(Store.at(user_folder("data") / "hazards"))


def read_book(url: str) -> list[NodeLife]:
    """The lives of a book.

    Raises:
        ConfigError: there are none.
        JournalError: storage cannot be read, or the book is damaged.
    """
    from spotray.market.lives import LivesBook
    from spotray.storage import Store

    if lives := LivesBook(Store.at(url)).lives():
        return lives
    raise ConfigError(f"no lives of nodes in {url}: fill it with `spotray hazards FOLDER`")


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
