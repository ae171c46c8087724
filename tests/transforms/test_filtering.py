import pytest

from dataflow import DataFromList, FilterData, LengthUnknown, NotAddressable


def numbers(n):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def test_it_keeps_the_datapoints_that_the_function_chooses():
    df = FilterData(numbers(7), lambda dp: dp[0] % 3 == 1)
    assert [list(df), list(df)] == [[[1], [4]], [[1], [4]]]


def test_datapoints_are_not_copied():
    lst = [[0], [1]]
    seen = []
    found = list(FilterData(DataFromList(lst, shuffle=False), lambda dp: seen.append(dp) or True))
    assert all(dp is element is shown for dp, element, shown in zip(found, lst, seen, strict=True))


def test_any_true_value_keeps_a_datapoint():
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


def test_stop_iteration_does_not_silently_end_the_pass():
    with pytest.raises(RuntimeError, match=r"FilterData, .*raised StopIteration"):
        list(FilterData(numbers(3), lambda dp: next(iter(()))))


def test_a_predicate_must_be_callable():
    with pytest.raises(TypeError, match="FilterData expects a function, got list"):
        FilterData(numbers(3), [1])
