"""Durable checkpoints: where they live, when they are written, what makes them trustworthy."""
