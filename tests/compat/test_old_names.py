"""Every public name of the predecessors has a counterpart here, or a reason why it has none."""

import inspect
import re

import pytest

import dataflow
from dataflow.compat import old_names as names
from dataflow.compat.old_names import Missing, Moved, target_of
from tests.compat.predecessors import ELEKTRONN, OLDER, TENSORPACK


@pytest.mark.parametrize("name", [*(f"tensorpack.dataflow.{name}" for name in TENSORPACK), "tensorpack.fix_rng_seed"])
def test_every_name_of_tensorpack_has_a_counterpart_or_a_reason(name):
    target = target_of(name)
    if isinstance(target, Moved):
        assert getattr(dataflow, target.name) is not None
    elif name.rpartition(".")[2] in {"fix_rng_seed", "DiskCacheData", "DiskCacheSerializer"}:
        assert isinstance(target, Missing)  # not a name of the package itself
    else:
        assert isinstance(target, Missing) and "left out" in target.text


def test_a_module_of_a_predecessor_is_none_of_this_library():
    assert [names.is_ours(name) for name in ("common", "nothing", "remote", "seed")] == [False, False, True, True]
    assert target_of("tensorpack.utils.utils.fix_rng_seed.x").length == 4


@pytest.mark.parametrize("package", ["tensorpack.dataflow", "tensorpack", "dataflow"])
@pytest.mark.parametrize("name", OLDER)
def test_every_name_of_older_versions_has_a_replacement(name, package):
    target = target_of(f"{package}.{name}")
    assert isinstance(target, Missing) and target.is_known
    assert set(re.findall(r"[A-Z]\w+Serializer|MultiProcessRunnerZMQ", target.text)) <= set(dataflow.__all__)


def test_every_name_of_elektronn_has_a_counterpart_or_a_reason():
    for name in ELEKTRONN:
        target = target_of(f"elektronn2.training.parallelisation.{name}")
        assert isinstance(target, Missing) == (name == "Proc")
        assert isinstance(target, Missing) or getattr(dataflow, target.name)


def test_renamed_parameters_are_parameters_of_the_present_class():
    for name, keywords in names.KEYWORDS.items():
        parameters = inspect.signature(getattr(dataflow, name)).parameters
        assert set(keywords.values()) <= set(parameters) and not set(keywords) & set(parameters)
    for name, positions in names.KEYWORD_ONLY.items():
        parameters = inspect.signature(getattr(dataflow, name)).parameters
        assert all(parameters[keyword].kind is inspect.Parameter.KEYWORD_ONLY for keyword in positions.values())
