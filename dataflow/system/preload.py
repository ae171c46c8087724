"""What the fork server does once, by importing this module, so that each of its workers has it.

It imports what the search for native threads needs, `importlib.metadata`, which tells the libraries that a function
uses from the user's program, and `numpy.ma`, which NumPy imports when a batch is checked for masked arrays.
"""

import numpy.ma  # noqa: F401

from dataflow.system.native_threads import find_pools
from dataflow.system.references import library_of

__all__: list[str] = []

find_pools()
library_of("numpy")
