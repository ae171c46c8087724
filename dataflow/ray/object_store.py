"""Nodes that keep datapoints in Ray's object store and pass on their ids.

Guarantees:

- A datapoint is in the store as long as any process of the cluster holds its id; but it is lost with the
  process that has put it there.
- An id goes only where Ray counts it. Any other pickle of it would be a number unknown to the store, and the datapoint
  could be gone: so pickling raises an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import parent_process
from typing import Any, NoReturn, final

from dataflow.errors import DataFlowError, TimeoutError, WorkerDied
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.datapoint import HOLE, component
from dataflow.protocol.parameters import seconds
from dataflow.protocol.pauses import Pause, pausing, resumed
from dataflow.protocol.seeding import Stream
from dataflow.ray.cluster import connect, ray_package

__all__ = ["ObjectId", "PlasmaGetData", "PlasmaPutData"]


class _StoreData(ProxyDataFlow[T_co]):
    """Common base of both nodes: they run in a process that is connected to the cluster."""

    _df_run_settings = frozenset({"socket", "timeout"})

    def __init__(self, ds: DataFlow, socket: str | None = None) -> None:
        super().__init__(ds)
        if socket is not None and "/" in socket and "://" not in socket:
            raise ValueError(
                f"{type(self).__name__}: socket is the address of a Ray cluster, or None, got {socket!r}. If that is "
                "the path of a plasma store: it has left pyarrow, and Ray's own needs no path, so leave socket out"
            )
        self.socket = socket

    def reset_state(self) -> None:
        if self.socket is None and parent_process() is not None and not ray_package().is_initialized():
            # It would start a store of its own, unknown to the others.
            raise DataFlowError(
                f"{type(self).__name__} runs in process {os.getpid()}, which is not connected to a Ray cluster. Put it "
                "above the runner, so that it runs in the main process; or give it the cluster's address: socket="
            )
        connect(self.socket)
        _let_ray_send_ids()
        super().reset_state()


class PlasmaPutData(_StoreData[T_co]):
    """Put every datapoint into the object store of a Ray cluster, and pass on ``[id]`` instead.

    `PlasmaGetData` returns the datapoint of an id: in this process, or in a task or an actor of the cluster
    to which the id was sent as an argument or a result. Several of them read the same memory. There ``id.ref`` is Ray's
    own reference, for code that does not use `PlasmaGetData`.

    A datapoint stays in the store until the last id of it is dropped, wherever that is; so memory is bounded by what
    the loop keeps. It is lost with the process that has put it: keep the flow, or at least its process, alive.

    Ids cannot be sent by the runners and maps of this library, in processes or over the network; these move datapoints
    themselves, `RayRunner` through the same object store. Put this node above a runner, not below it.

    Args:
        ds: Any datapoints that can be pickled.
        socket: Address of the cluster, as for ``ray.init``. None is the one to which this process is connected,
            otherwise one that is started on this machine.

    Raises:
        MissingExtra: The package ray is not installed; raised when the flow is iterated.
        ValueError: `socket` is the path of a plasma store, which no longer exists.
        DataFlowError: The flow runs in a process without a cluster: a worker that was forked, or has no address.

    Source:
        tensorpack.dataflow, whose class of this name it replaces; there the store was that of pyarrow.
    """

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return map(_put, self.ds._df_run_pass(p, stream))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return map(_put, self.ds._df_at(blocks, stream))


class PlasmaGetData(_StoreData[T_co]):
    """Return the datapoints for the ids that `PlasmaPutData` passes on.

    Arrays are views of the object store and read-only, since others may read the same memory; each keeps its datapoint
    in the store. Copy what you want to change, with `MapData`.

    Args:
        ds: Datapoints ``[id]``. Ray's references, as ``ray.put`` returns them, are accepted too.
        socket: As for `PlasmaPutData`. It must be the same cluster.
        timeout: Seconds to wait for a datapoint that comes from another machine; None waits as long as Ray does.

    Raises:
        TypeError: A datapoint does not hold an id.
        WorkerDied: The process that had put the datapoint has ended, or the machine that held it.
        TimeoutError: It did not come within `timeout` seconds.

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    def __init__(self, ds: DataFlow, socket: str | None = None, *, timeout: float | None = None) -> None:
        super().__init__(ds, socket)
        self.timeout = None if timeout is None else seconds(self, "timeout", timeout)

    @property
    def _df_waits(self) -> bool:
        return self.timeout is not None or super()._df_waits

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return self._got(self.ds._df_run_pass(p, stream))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return self._got(self.ds._df_at(blocks, stream))

    def _got(self, ids: Iterator[Any]) -> Iterator[Any]:
        return pausing(self._waiting(ids), True) if self._df_waits else map(self._get, ids)

    def _waiting(self, ids: Iterator[Any]) -> Iterator[Any]:
        for found in resumed(ids, True):
            dp = found  # stands for: nothing has come so far
            while dp is found and type(found) is not Pause:
                try:
                    dp = self._get(found)
                    break
                except TimeoutError as error:
                    pause = Pause(error)
                yield pause
            yield dp
            del dp, found

    def _get(self, dp: Any) -> Any:
        if dp is HOLE:
            return HOLE
        ray = ray_package()
        found = component(dp, 0)
        ref = found.ref if isinstance(found, ObjectId) else found
        if not isinstance(ref, ray.ObjectRef):
            raise TypeError(
                f"PlasmaGetData expects datapoints [id] that PlasmaPutData has made, got a {type(found).__name__}"
            )
        try:
            return ray.get(ref, timeout=self.timeout)
        except ray.exceptions.GetTimeoutError as error:
            raise TimeoutError(
                f"PlasmaGetData waited {self.timeout} seconds for a datapoint. See whether the machine that holds it "
                "can be reached, or raise timeout"
            ) from error
        except ray.exceptions.ObjectLostError as error:
            raise WorkerDied(
                "a datapoint is no longer in the object store: the process that had put it there has ended, or the "
                "machine that held it. Keep the process with PlasmaPutData alive until its datapoints are read"
            ) from error


@final
class ObjectId:
    """The id of a datapoint in Ray's object store; it keeps the datapoint there.

    Attributes:
        ref: Ray's own reference, for tasks and actors, or for ``ray.get``.
    """

    __slots__ = ("ref",)

    def __init__(self, ref: Any) -> None:
        self.ref = ref

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectId) and bool(self.ref == other.ref)

    def __hash__(self) -> int:
        return hash(self.ref)

    def __repr__(self) -> str:
        return f"ObjectId({self.ref.hex()})"

    def __copy__(self) -> ObjectId:
        return self

    def __deepcopy__(self, memo: Any) -> ObjectId:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an id of Ray's object store can be sent only by Ray, as an argument or a result of a task or an actor. "
            "Runners and maps move datapoints themselves: put PlasmaPutData above them"
        )


def _put(dp: Any) -> Any:
    return HOLE if dp is HOLE else [ObjectId(ray_package().put(dp))]


def _let_ray_send_ids() -> None:
    """Register with Ray, in this process, how an id is sent: as its reference, which Ray counts on both sides."""
    from ray.util import register_serializer

    register_serializer(ObjectId, serializer=_reference, deserializer=_received)


def _reference(found: ObjectId) -> Any:
    return found.ref


def _received(ref: Any) -> ObjectId:
    _let_ray_send_ids()  # it may be sent on
    return ObjectId(ref)
