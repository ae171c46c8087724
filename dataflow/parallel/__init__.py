"""Runners and parallel maps: nodes whose work is done by a pool of processes or threads."""

from typing import TYPE_CHECKING

from dataflow.old_places import moved

if not TYPE_CHECKING:  # for a type checker, such a module would have every name

    def __getattr__(name: str) -> object:
        """Raise an error that says where a name of tensorpack is now."""
        raise moved(__name__, name)
