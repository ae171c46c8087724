"""Datapoints over TCP: one flow sends, on this or another machine, and another receives."""

from typing import TYPE_CHECKING

from dataflow.old_places import moved

if not TYPE_CHECKING:  # to a type checker, such a module would have every name

    def __getattr__(name: str) -> object:
        """Say where tensorpack's names are."""
        raise moved(__name__, name)
