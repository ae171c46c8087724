"""Diagnostics: print the datapoints of a flow, measure its speed, show its progress."""
