"""Tuning: Ray Tune over trials whose workers come and go."""
