"""Brace expansion: as WebDataset does it, and what is no pair of braces."""

import pytest

from dataflow.formats.brace_expansion import expand_braces

NAMES = [
    "s-{000..002}.tar",
    "s-{002..000}.tar",
    "s-{000..002..2}.tar",
    "s-{2..0..2}.tar",
    "s-{00{0,1},002}.tar",
    "s-00{0..1}.tar::{x,y}.tar",
    "{s-000,s-001}.tar::s-002.tar",
    "s-{a..c}{0..1}.tar",
    "s-{x}.tar",
    "s.tar",
    "-{08..11}-{a,b{1..2},{c,d}}-",
    "{-1..1}{1..-01}",
    "{c..a}{Z..b}{z..a..5}",
    "{,a}{b,}{}{{a},b}",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_expanded_as_webdataset_does_it(name):
    expand = pytest.importorskip("webdataset").shardlists.expand_urls
    assert [one for part in name.split("::") for one in expand_braces(part)] == expand(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{a..e..2}-{c..a}", ["a-c", "a-b", "a-a", "c-c", "c-b", "c-a", "e-c", "e-b", "e-a"]), ("{x..x}", ["x"])],
)
def test_letters_in_braces_stand_for_those_between_them(text, expected):
    assert expand_braces(text) == expected


@pytest.mark.parametrize("text", ["a}b{c", "a}", "{a,b}}", "{a"])
def test_braces_that_are_no_pairs_are_refused(text):
    with pytest.raises(ValueError, match="a brace without its counterpart"):
        expand_braces(text)
