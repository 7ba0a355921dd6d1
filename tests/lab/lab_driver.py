"""A driver for the tests: starts a lab of one worker, says so, and waits to be ended.

Its standard input says how: ``exit`` closes the lab, ``leave`` does not.
"""

from __future__ import annotations

import json
import os
import sys

from spotray.lab.lab import Lab


def main() -> None:
    with Lab(1) as lab:
        lab.connect(logging_level="ERROR")
        folders = sorted({str(p.parent) for n in lab.nodes() for p in (n.node_dir, n.shm_dir)})
        print(json.dumps({"address": lab.address, "folders": folders}), flush=True)
        if sys.stdin.readline().strip() == "leave":
            os._exit(0)


if __name__ == "__main__":
    main()
