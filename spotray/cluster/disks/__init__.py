"""Data disks of the workers: there again after a preemption, with what was on them."""
