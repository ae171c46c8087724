"""Optional packages: imported at their first use, with an error that names the extra to install."""

from __future__ import annotations

import importlib
from typing import Any

from dataflow.errors import MissingExtra

__all__ = ["optional"]


def optional(package: str, extra: str, purpose: str) -> Any:
    """Import an optional package.

    Args:
        package: Its name.
        extra: The extra of dataflow that installs it.
        purpose: Subject and verb of the message: "LMDB files need".

    Raises:
        MissingExtra: The package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtra(f'{purpose} the package {package}: pip install "dataflow-runners[{extra}]"') from error
