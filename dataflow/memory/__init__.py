"""Shared memory for arrays."""
