"""A flow that fills arrays of its encoder, and yields each where nobody else can reach it; or keeps it."""

import numpy as np

from dataflow.transport.batching_sender import BatchingSender
from dataflow.transport.flow_control import Credit, Window
from dataflow.transport.messages import Kind

__all__ = ["OutputBufferFlow"]


class OutputBufferFlow:
    """That flow, and its batching sender.

    Attributes:
        bodies: Of the messages that were sent, one for each array.
        addresses: Of the arrays.
        kept: Those that the flow has kept.
    """

    def __init__(self, encoder):
        self.bodies, self.addresses, self.kept = [], [], []
        self._encoder = encoder
        self._batching_sender = BatchingSender(0, self, encoder, Credit(1, shared=False).port(0).quota(Window(1000)))
        self._batching_sender.calibrate_encoder()

    def put(self, *, keep):
        """Fill an array with ones and yield it."""
        self._batching_sender.put_all(self._expressions(keep))

    def _expressions(self, keep):
        yield [self._made(keep)]

    def _made(self, keep):
        array = self._encoder.allocate((5000,), np.dtype(float))
        array[...] = 1
        self.addresses.append(array.ctypes.data)
        if keep:
            self.kept.append(array)
        return array

    def finish(self):
        self._batching_sender.close(0)

    def send(self, message, begun=None):
        if message.kind is Kind.DATA:
            self.bodies.append(message.body)

    def close(self, flush):
        """Nothing is held."""
