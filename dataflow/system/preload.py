"""Importing this module finds the pools of native threads: the fork server does so once, and its workers know them."""

from dataflow.system.native_threads import find_pools

__all__: list[str] = []

find_pools()
