import pytest

from dataflow import DataFromList, FilterData, LengthUnknown, NotAddressable


def numbers(n):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def test_it_gives_what_the_function_chooses():
    df = FilterData(numbers(7), lambda dp: dp[0] % 3 == 1)
    assert [list(df), list(df)] == [[[1], [4]], [[1], [4]]]


def test_the_datapoints_themselves_are_shown_and_given_out():
    lst = [[0], [1]]
    seen = []
    found = list(FilterData(DataFromList(lst, shuffle=False), lambda dp: seen.append(dp) or True))
    assert all(dp is element is shown for dp, element, shown in zip(found, lst, seen, strict=True))


def test_anything_true_will_do():
    assert list(FilterData(numbers(3), lambda dp: dp[0])) == [[1], [2]]


def test_it_has_no_length_and_no_index():
    df = FilterData(numbers(3), bool)
    with pytest.raises(LengthUnknown, match="FilterData"):
        len(df)
    assert not df.addressable
    with pytest.raises(NotAddressable, match="because FilterData is only"):
        df[0]


def test_an_error_is_explained():
    def broken(dp):
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        list(FilterData(numbers(3), broken))
    assert "raised by the function of FilterData: " in caught.value.__notes__[0]


def test_a_function_that_stops_does_not_end_the_pass_in_silence():
    with pytest.raises(RuntimeError, match=r"FilterData, .*raised StopIteration"):
        list(FilterData(numbers(3), lambda dp: next(iter(()))))


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="FilterData expects a function, got list"):
        FilterData(numbers(3), [1])
