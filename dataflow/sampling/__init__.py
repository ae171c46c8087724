"""Sampling: which node of a chain a thread is executing, seen from another thread. Pure Python, no counters."""
