"""Elastic training on Ray Train."""
