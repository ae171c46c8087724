"""The word of a worker: which datapoint it makes, and since when; written at once, and empty while there is none."""

from dataflow.transport.current_item import CurrentItem, position_in, unknown_item


def test_a_word_tells_the_position_and_one_try_from_another(monkeypatch):
    words = memoryview(bytearray(16)).cast("Q")
    item = CurrentItem(words, 1)
    assert position_in(words[1]) is None and not item.end()
    seen = set()
    for now in (1.0, 1.5, 1e9):
        monkeypatch.setattr("dataflow.transport.current_item._now", lambda now=now: now)
        for position in (0, 1, 4095, 100_000_000):
            item.begin(position)
            assert position_in(words[1]) == position
            seen.add(words[1])
    assert len(seen) == 12 and words[0] == 0
    assert item.end() and words[1] == 0
    item.resume()
    assert position_in(words[1]) == 100_000_000


def test_a_step_begins_a_datapoint_and_keeps_nothing_of_it():
    words = memoryview(bytearray(8)).cast("Q")
    steps = CurrentItem(words, 0).recorded([["a"], ["b"]])
    assert [(position_in(words[0]), dp) for dp in steps] == [(0, ["a"]), (1, ["b"])]


def test_an_unknown_datapoint_has_no_position_and_changes_with_each_sign_of_life():
    unknown = [unknown_item(sign) for sign in (0, 1, 2, 1 << 40)]
    assert all(unknown) and [position_in(word) for word in unknown] == [None] * 4
    assert len(set(unknown[:3])) == 3
    assert all(word < 1 << 64 for word in unknown)  # it fits into the memory of a worker
