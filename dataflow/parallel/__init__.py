"""Runners: where nodes and machines meet."""
