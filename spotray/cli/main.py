"""The ``spotray`` command: one subcommand per file beside this one.

A command's file has ``add_parser(subparsers)`` and ``run(args) -> exit code``. It
imports what it needs inside ``run``, so that ``spotray --help`` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence

from spotray import __version__
from spotray.errors import SpotrayError

# Names of the files, in the order of the help.
COMMANDS = (
    "demo",
    "launch",
    "jobs",
    "logs",
    "stop",
    "status",
    "cost",
    "report",
    "prices",
    "plan",
    "bench_node",
    "observe",
    "simulate",
    "hazards",
    "cluster",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 (done), 1 (a spotray error) or 2 (usage).

    `launch` and `logs` end with the code of the job.
    """
    parser = argparse.ArgumentParser(
        prog="spotray",
        description="Train and tune PyTorch models on machines that the cloud may take away.",
    )
    parser.add_argument("--version", action="version", version=f"spotray {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f"spotray.cli.{name}").add_parser(subparsers)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="spotray: %(message)s", stream=sys.stderr)
    try:
        code = int(args.run(args))
        sys.stdout.flush()  # here, where a closed pipe can still be caught
        return code
    except SpotrayError as exc:
        print(f"spotray: error: {' '.join(str(exc).split())}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader, `head` perhaps, has seen enough. Python flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("spotray: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
