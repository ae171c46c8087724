"""Runners, maps and datasets on a Ray cluster."""
