"""Figures: a few words that say who waits, and numbers of bytes as text."""

from dataclasses import replace

import pytest

from dataflow.observe.figures import size_text
from tests.observe.made_up import flow, runner, workers


def test_a_few_words_say_who_waits():
    assert flow(runner(workers(2, busy=0.9, blocked=0.1), waiting=0.3)).waits == "consumer waits 30%, workers wait 10%"
    assert flow(runner((), waiting=0.3)).waits == "consumer waits 30%"
    assert replace(flow(runner(())), runners=()).waits == ""


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1000 bytes"),
        (1536, "1.5 KiB"),
        (1020 << 10, "1020 KiB"),
        (5 << 40, "5.12e+03 GiB"),
    ],
)
def test_sizes_have_no_exponents_below_a_tebibyte(nbytes, text):
    assert size_text(nbytes) == text
