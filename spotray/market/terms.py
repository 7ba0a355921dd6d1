"""The clouds' terms for short-lived nodes: the shortest bill, and what is free when they take one.

Source:
    AWS, "Billing for interrupted Spot Instances": none if EC2 interrupts within the first
    hour. Google, "Spot VMs": none if preempted within the first minute. All three bill
    Linux nodes by the second.
"""

from __future__ import annotations

CLOUDS = ("aws", "gcp", "azure")  # whose terms these are
LEAST_S = 60.0  # every cloud's shortest bill
FREE_S = {"aws": 3600.0, "gcp": 60.0}  # a node that the cloud takes within that is not billed


def is_free(cloud: str, lived_s: float, *, taken: bool) -> bool:
    """Whether a spot node of that age costs nothing. ``taken``: the cloud ended it.

    >>> is_free("aws", 3599, taken=True), is_free("aws", 3600, taken=True)
    (True, False)
    """
    return taken and lived_s < FREE_S.get(cloud, 0.0)
