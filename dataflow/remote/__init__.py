"""Datapoints over TCP: `send_dataflow_zmq` sends a flow, `RemoteDataZMQ` receives it, on this or another machine."""

from typing import TYPE_CHECKING

from dataflow.old_places import moved

if not TYPE_CHECKING:  # for a type checker, such a module would have every name

    def __getattr__(name: str) -> object:
        """Point to the new places of tensorpack's names."""
        raise moved(__name__, name)
