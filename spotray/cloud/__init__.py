"""The outside world: one folder per cloud, whose own words stop there."""
