"""What to do, decided from plain values: no clock, no network, no environment."""
