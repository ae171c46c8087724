"""Datapoints on disk."""
