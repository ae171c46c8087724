"""Weak sets: another thread may change them at any moment."""

import weakref

import pytest

from dataflow.system.weak_sets import members


class Thing:
    pass


class Interrupted(weakref.WeakSet):
    """While it is iterated for the first time, another thread takes its turn."""

    other_thread = None

    def __iter__(self):
        for member in super().__iter__():
            if self.other_thread is not None:
                turn, self.other_thread = self.other_thread, None
                turn()
            yield member


@pytest.mark.parametrize("what", ["added", "discarded"])
def test_members_that_come_and_go_meanwhile_do_no_harm(what):
    kept = [Thing() for _ in range(4)]
    weak_set = Interrupted(kept[:3])
    weak_set.other_thread = (lambda: weak_set.add(kept[3])) if what == "added" else (lambda: weak_set.discard(kept[0]))
    assert set(kept[1:3]) <= set(members(weak_set)) <= set(kept)
