"""Beside Ray's head: brings a cluster back to spot, and remembers what was taken from it."""
