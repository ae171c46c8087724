"""The same chain on a Ray cluster."""
