"""``spotray report RUN_DIR``: one HTML page of what happened, and what it cost."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "report",
        help="one HTML page of a run or a sweep: nodes, workers, metrics, money, decisions",
        description="Write one HTML page of a run or a sweep from its journals alone. It needs "
        "nothing from the network, and can be sent to anybody.",
    )
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", help="storage_path/name of the run or sweep; path or URL"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="the page; - for stdout [NAME-report.html, here]"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write a run's page.

    Raises:
        ConfigError: there is no journal, plotly is missing, or the file cannot be written.
    """
    import os
    import sys
    from pathlib import Path

    from spotray.errors import ConfigError
    from spotray.ledger.rundir import load_run
    from spotray.ledger.sweepdir import is_sweep, load_sweep
    from spotray.report.page import to_html
    from spotray.report.run import page_of_run
    from spotray.report.sweep_page import page_of_sweep

    if is_sweep(args.run_dir):
        page = page_of_sweep(load_sweep(args.run_dir))
    else:
        page = page_of_run(load_run(args.run_dir))
    html = to_html(page)
    if args.out == "-":
        sys.stdout.write(html)
        return 0
    name = args.run_dir.rstrip("/").rpartition("/")[2] or "run"
    out = Path(args.out or f"{name}-report.html")
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        beside.write_text(html, encoding="utf-8")
        beside.replace(out)  # nobody sees half of a page
    except OSError as exc:
        raise ConfigError(f"cannot write {out}: {exc.strerror or exc}: give --out FILE") from exc
    finally:
        beside.unlink(missing_ok=True)
    print(f"{out}: {page.title}; open it in a browser")
    return 0
