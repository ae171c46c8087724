"""The socket of either end: what it does to the memory of its process."""

import os
import platform
import subprocess
import sys

import pytest

from tests.support.senders import ROOT

FAULTS = """
import resource
import numpy as np
from dataflow import RemoteDataZMQ

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        frames = [np.ones(3 << 20, np.uint8) for _ in range(4)]
        del frames
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with RemoteDataZMQ("tcp://127.0.0.1:*", num_senders=1) as df:
    df.reset_state()
    page_faults()
    print(page_faults())
"""


def page_faults(**variables):
    """Of making and dropping four blocks of 768 pages each, 20 times, in a process that receives."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    result = subprocess.run(
        [sys.executable, "-c", FAULTS], env=clean | variables, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return int(result.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other ways")
def test_memory_of_frames_stays_mapped_unless_the_user_has_told_malloc_otherwise():
    assert page_faults() < 6_000  # of 61,440
    assert page_faults(MALLOC_TRIM_THRESHOLD_="131072") > 30_000
