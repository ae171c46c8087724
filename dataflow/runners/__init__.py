"""Runners and parallel maps: nodes whose work is done by a pool of processes or threads."""
