"""Runners: where nodes and machines meet."""

from typing import TYPE_CHECKING

from dataflow.old_places import moved

if not TYPE_CHECKING:  # to a type checker, such a module would have every name

    def __getattr__(name: str) -> object:
        """Say where tensorpack's names are."""
        raise moved(__name__, name)
