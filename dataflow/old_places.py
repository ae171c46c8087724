"""Import errors for module paths of tensorpack.dataflow, which say that all names are now at the top level.

Programs written for tensorpack import from `tensorpack.dataflow.common`, `.raw`, `.base`, `.parallel` and so on.
For modules that do not exist here, the import finder `OldPlaces` raises the error: it is last in `sys.meta_path`, so it
is called only for modules that no other finder has found. Modules that do exist (`base`, `parallel`, `remote`) raise it
in their ``__getattr__``, through `moved`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["OldPlaces", "moved", "watch"]

_PACKAGE: Final = "dataflow"

_MOVED: Final = {
    "common": "BatchData",
    "dataflow": "BatchData",  # the stand-alone package has its modules in dataflow.dataflow
    "dftools": "send_dataflow_zmq",
    "format": "LMDBData",
    "parallel_map": "MultiProcessMapData",
    "prefetch": "PrefetchData",
    "raw": "DataFromList",
    "serialize": "LMDBSerializer",
}
"""Modules of tensorpack.dataflow, each with one of its names."""

_LEFT_OUT: Final = {
    "dataset": "Loaders of public datasets are left out: read them with DataFromList or a source of your own",
    "image": "Its nodes are left out: decode and augment with any image library in MapData",
    "utils": "It is left out, but for fix_rng_seed(n), which is dataflow.seed(n)",
    "imgaug": "It is left out: any augmentation library works in MapData, or in RandomMapData, which has a generator",
}


class OldPlaces:
    """Import finder that raises for modules of tensorpack.dataflow, and leaves all others to Python."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, module = fullname.partition(".")
        if package != _PACKAGE:
            return None
        # Without `name=`: a ModuleNotFoundError that has one is swallowed by `from dataflow import imgaug`.
        if module in _MOVED:
            example = f"from {_PACKAGE} import {_MOVED[module]}"
            raise ModuleNotFoundError(f"there is no {fullname}: everything is at the top level, as in {example}")
        if module in _LEFT_OUT:
            raise ModuleNotFoundError(f"there is no {fullname}. {_LEFT_OUT[module]}")
        return None


def watch() -> None:
    """Install the import finder. Idempotent."""
    if OldPlaces not in sys.meta_path:
        sys.meta_path.append(OldPlaces)


def moved(module: str, name: str) -> Exception:
    """The error to raise in the ``__getattr__`` of an existing module, which says where `name` is now.

    It is an ImportError for a public name of the package, because ``from … import`` replaces the text of an
    AttributeError; for any other name it is the usual AttributeError.
    """
    if name in getattr(sys.modules.get(_PACKAGE), "__all__", ()):
        example = f"from {_PACKAGE} import {name}"
        return ImportError(f"{name} is not in {module}: everything is at the top level: {example}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
