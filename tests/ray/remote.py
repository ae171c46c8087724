"""Runners over actors, with a timeout so that no test can hang."""

from dataflow import RayRunner
from tests.support.waits import LIMIT

__all__ = ["remote", "strict"]


def remote(ds, num=1, **more):
    return RayRunner(ds, num, **{"timeout": LIMIT, **more})


def strict(ds, num=1, **more):
    return remote(ds, num, strict=True, **more)
