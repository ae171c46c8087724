"""Exception serialization: a worker's exception as bytes, and back in the consumer."""

from __future__ import annotations

import pickle
from typing import Any, cast

from dataflow.errors import WorkerError, WorkerTraceback
from dataflow.protocol.failures import Report, add_note, traceback_of
from dataflow.system.pickling import dumps_back

__all__ = ["pack_failure", "pack_report", "unpack_failure", "unpack_report"]


def pack_failure(error: BaseException, *, note: str) -> bytes:
    """Serialize an exception; any process that can import its class can load it.

    In order of preference: a pickle that survives the round trip; its class, arguments and attributes, reassembled
    without calling ``__init__``; its type and text alone.
    """
    text = traceback_of(error)
    add_note(error, note)
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    try:
        message = str(error)
    except Exception as broken:
        message = f"<str() of it raises {type(broken).__name__}>"
    texts = f"{name}: {message}", note, text
    for attempt in (_whole, _in_parts):
        try:
            packed = attempt(error)
            # Loaded once here: some exceptions can be pickled, and fail only where they are loaded.
            if _is_faithful(_load(packed), error):
                return pickle.dumps((packed, *texts))
        except Exception:
            continue  # pickling may raise any exception: try the next form
    return pickle.dumps((("text", b""), *texts))


def unpack_failure(packed: bytes) -> BaseException:
    """Return the exception, with the worker's traceback as its cause.

    An exception that could be loaded in the worker may fail to load here, for example if only the worker can import its
    class: then only type and text are left.
    """
    record, summary, note, text = pickle.loads(packed)
    try:
        error = _load(record)
    except Exception:
        error = WorkerError(summary)
        error.add_note(note)
    error.__cause__ = WorkerTraceback(text)
    return error


def pack_report(report: Report, *, note: str) -> bytes:
    """Serialize a report; its error is packed separately."""
    error = None if report.error is None else pack_failure(report.error, note=note)
    return dumps_back((report.failure, error, report.judged, report.seen, report.warning))


def unpack_report(packed: bytes) -> Report:
    """Return the report, with its error restored by `unpack_failure`."""
    failure, error, judged, seen, warning = pickle.loads(packed)
    return Report(failure, None if error is None else unpack_failure(error), judged, seen, warning)


def _whole(error: BaseException) -> tuple[Any, ...]:
    return "whole", dumps_back(error)


def _in_parts(error: BaseException) -> tuple[Any, ...]:
    return "parts", dumps_back((type(error), error.args, error.__dict__))


def _load(record: tuple[Any, ...]) -> BaseException:
    way, packed = record
    if way == "whole":
        return cast(BaseException, pickle.loads(packed))
    if way == "text":
        raise TypeError("only type and text have travelled")
    kind, args, attributes = pickle.loads(packed)
    error: BaseException = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def _is_faithful(copy: BaseException, error: BaseException) -> bool:
    """Check that type, attributes and arguments have survived.

    Some classes load without an error but with a wrong type, or with arguments lost or nested.
    """
    same_attributes = copy.__dict__.keys() == error.__dict__.keys()
    return type(copy) is type(error) and same_attributes and _are_equal(copy.args, error.args)


def _are_equal(copied: tuple[Any, ...], args: tuple[Any, ...]) -> bool:
    """Compare by repr, because arrays have no single truth value; or by pickle, where the repr is only an address."""
    return repr(copied) == repr(args) or dumps_back(copied) == dumps_back(pickle.loads(dumps_back(args)))
