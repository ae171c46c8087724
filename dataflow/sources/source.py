"""Base class of the built-in sources: nodes without an input."""

from __future__ import annotations

from collections.abc import Sequence

from dataflow.protocol.base import DataFlow, T_co

__all__ = ["Source"]


class Source(DataFlow[T_co]):
    """A flow that has no input."""

    @property
    def _df_inputs(self) -> Sequence[DataFlow]:
        return super()._df_inputs if self._df_user_written else ()
