"""A real Ray cluster of several nodes on one machine, with an emulated spot market."""
