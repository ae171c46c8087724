"""A flow on its way to a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from dataflow.base import DataFlow
from dataflow.parallel.worker_options import Prepared
from dataflow.pickling import dumps, imported_main
from dataflow.workers.payload import Payload as AnyPayload

__all__ = ["FlowPayload"]


class FlowPayload(AnyPayload):
    """A job with a flow in it, or anything else that holds flows; a complaint names the node that cannot be sent."""

    otherwise: ClassVar[str] = ', or start workers by fork (context=multiprocessing.get_context("fork"))'

    def complaint(self, value: Any, error: Exception) -> str:
        if isinstance(value, Prepared):
            try:
                dumps(value.worker_init, main=imported_main())
            except Exception as reason:
                return (
                    f"worker_init ({value.worker_init!r:.200}) cannot be sent to a worker process: {reason}. Make what "
                    f"it needs inside it{self.otherwise}"
                )
            value = value.job
        for node in _nodes(value):
            for name, attribute in vars(node).items():
                if isinstance(attribute, DataFlow) or name == "_df_state":
                    continue
                try:
                    dumps(attribute, main=imported_main())
                except Exception as reason:
                    return (
                        f"{type(node).__name__}.{name} (a {type(attribute).__name__}) cannot be sent to a worker "
                        f"process: {reason}. Make it in reset_state, which runs inside the worker{self.otherwise}"
                    )
        return f"the flow cannot be sent to a worker process: {error}"


def _nodes(value: Any) -> Iterator[DataFlow]:
    flows = [item for item in vars(value).values() if isinstance(item, DataFlow)] if hasattr(value, "__dict__") else []
    while flows:
        node = flows.pop(0)
        yield node
        flows.extend(node._df_inputs)
