"""Datapoints over TCP: one flow sends, on this or another machine, and another receives."""
