"""``python -m benchmarks.overhead.drive JSON``: a job's driver (Ray), or one worker."""

import json
import sys

from benchmarks.overhead.sides import DRIVERS

if __name__ == "__main__":
    config = json.loads(sys.argv[1])
    DRIVERS[config["side"]](config)
