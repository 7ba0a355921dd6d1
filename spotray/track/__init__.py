"""What experiment trackers and Prometheus are told of a run while it goes on."""
