"""How often to write a checkpoint."""

from __future__ import annotations

import math

from spotray.errors import ConfigError


def checkpoint_interval_s(*, write_s: float, mtbp_s: float) -> float:
    """Interval between checkpoints that wastes the least time.

    Daly's higher-order optimum: it balances the time spent writing against the work
    lost at a preemption, and stays right where preemptions are about as frequent as
    checkpoints are slow. For short writes it is Young's ``sqrt(2 * write_s * mtbp_s)``.

    Args:
        write_s: Time that one checkpoint blocks training, seconds, > 0.
        mtbp_s: Mean time between preemptions of the *whole job*, seconds, > 0; for n
            independent nodes that is the per-node value divided by n.

    Returns:
        Seconds of training between two checkpoints, never below ``write_s``.

    Raises:
        ConfigError: ``write_s`` or ``mtbp_s`` is not positive.

    Source:
        J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
        restart dumps", Future Generation Computer Systems 22(3), 2006, eq. 37.

    >>> round(checkpoint_interval_s(write_s=20, mtbp_s=4 * 3600))
    746
    """
    for name, value in (("write_s", write_s), ("mtbp_s", mtbp_s)):
        if not value > 0:  # so that NaN is refused too
            raise ConfigError(f"{name} is {value}: it must be above 0 seconds")
    if write_s >= 2 * mtbp_s:
        return max(mtbp_s, write_s)
    ratio = write_s / (2 * mtbp_s)
    young_s = math.sqrt(2 * write_s * mtbp_s)
    return max(young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s, write_s)
