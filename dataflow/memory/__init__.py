"""Shared memory: the arena for arrays, and the packed list."""
