"""Command line interface: ``python -m dataflow COMMAND``.

The commands are `convert`, `digest`, `keys`, `migrate`, `profile`, `report`, `send`, `speed` and `top`; ``--version``
prints the version.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from dataflow.compat.rewritten_files import migrate
from dataflow.errors import DataFlowError
from dataflow.formats.converting import SUFFIXES, convert
from dataflow.observe.profiler import profile
from dataflow.observe.speed import TestDataSpeed
from dataflow.protocol.base import DataFlow
from dataflow.protocol.digests import compare, digest_lines, read_digests
from dataflow.protocol.parameters import seconds as checked_seconds
from dataflow.protocol.seeding import seed
from dataflow.remote.keys import make_keys
from dataflow.remote.peer_options import HEARTBEAT, HWM_BYTES
from dataflow.remote.sending import send_dataflow_zmq
from dataflow.system.extras import optional
from dataflow.transforms.repeating import RepeatedData
from dataflow.version import __version__

__all__ = ["NoSuchFlow", "flow_named", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command given by the arguments.

    Returns:
        The exit code: 0 on success; 1 on failure, with the reason on stderr, or if compared data differ; 2 if there is
        no such flow or file; 130 after Ctrl-C.

    Raises:
        SystemExit: The arguments are invalid; the exit code is 2.
    """
    options = _parser().parse_args(argv)
    try:
        code: int = options.command(options)
    except NoSuchFlow as error:
        print(f"{options.prog}: {error}", file=sys.stderr)
        return 2
    except (DataFlowError, OSError, ValueError, KeyError) as error:
        text = error.args[0] if isinstance(error, KeyError) else error  # str() of a KeyError adds quotation marks
        print(f"{options.prog}: {text}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dataflow", description="Tools for dataflows.")
    parser.add_argument("--version", action="version", version=f"dataflow {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_convert(commands)
    _add_digest(commands)
    _add_keys(commands)
    _add_migrate(commands)
    _add_profile(commands)
    _add_report(commands)
    _add_send(commands)
    _add_speed(commands)
    _add_top(commands)
    return parser


def _flow_parser(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], short: str, description: str
) -> argparse.ArgumentParser:
    """Add a command whose first argument names a flow."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=short, description=description)
    parser.add_argument("flow", metavar="MODULE:FLOW", help="a flow, or a function that makes one")
    parser.set_defaults(command=run, prog=parser.prog)
    return parser


def _add_convert(commands: Any) -> None:
    parser = commands.add_parser(
        "convert",
        help="write the datapoints of one file into another",
        description="Write the datapoints of one file into another, in their order, with a progress bar. The formats "
        f"are inferred from the file extensions: {' '.join(SUFFIXES)}.",
    )
    parser.add_argument("src", metavar="SRC", help="input file")
    parser.add_argument("dst", metavar="DST", help="output file; it appears only when complete")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output file")
    parser.add_argument("--compress", metavar="HOW", help="zstd (LMDB, TFRecord), gzip or lzf (HDF5)")
    parser.add_argument("--data-paths", metavar="A,B", help="the datasets of an HDF5 file to read or write")
    parser.add_argument(
        "--pickle", action="store_true", help="read and write pickles, which can run any code: only for files you trust"
    )
    parser.set_defaults(command=_convert, prog=parser.prog)


def _convert(options: argparse.Namespace) -> int:
    num = convert(
        options.src,
        options.dst,
        overwrite=options.overwrite,
        compress=options.compress,
        pickle=options.pickle,
        data_paths=options.data_paths.split(",") if options.data_paths else None,
    )
    print(f"{options.dst}: {num} datapoints")
    return 0


def _add_digest(commands: Any) -> None:
    parser = commands.add_parser(
        "digest",
        help="write digests of the datapoints of a flow, and compare them",
        description="Write a digest of each datapoint of a flow to stdout; or compare files of digests, which are the "
        "same on every machine if the data are. The exit code of a comparison is 0 if all are equal, 1 if they differ, "
        "and 2 if they cannot be compared.",
    )
    parser.add_argument("flow", metavar="MODULE:FLOW", nargs="?", help="a flow, or a function that makes one")
    parser.add_argument("--num", type=int, metavar="N", help="number of datapoints (default: one pass)")
    parser.add_argument(
        "--block", type=int, metavar="N", default=1, help="number of datapoints for each digest (%(default)s)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="call dataflow.seed(N)")
    parser.add_argument("--rank", type=int, metavar="N", help="the flow is the share of this rank")
    parser.add_argument("--world-size", type=int, metavar="N", help="the number of ranks")
    parser.add_argument(
        "--compare",
        metavar="FILE",
        nargs="+",
        help="files of digests: two or more of the same flow, or the whole and then the shares of all ranks",
    )
    parser.set_defaults(command=_digest, prog=parser.prog, error=parser.error)


def _digest(options: argparse.Namespace) -> int:
    if (options.flow is None) == (options.compare is None):
        options.error("give a flow, or --compare with files")
    if options.compare is not None:
        return _compare(options.prog, options.compare)
    rank, world_size = options.rank or 0, options.world_size or 1
    if (options.rank is None) != (options.world_size is None) or not 0 <= rank < world_size:
        options.error("--rank and --world-size belong together, and ranks count from 0")
    if options.block < 1 or (options.num is not None and options.num < 1):
        options.error("--num and --block are at least 1")
    if options.seed is not None and options.seed < 0:
        options.error("--seed is a number from 0")
    with flow_named(options.flow) as flow:
        if options.seed is not None:
            seed(options.seed)
        for line in digest_lines(flow, options.num, block=options.block, rank=rank, world_size=world_size):
            print(line)
    return 0


def _compare(prog: str, paths: Sequence[str]) -> int:
    try:
        files = []
        for path in paths:
            with open(path, encoding="utf-8") as file:
                files.append(read_digests(file, path))
        found = compare(files)
    except (OSError, ValueError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    print(found or f"equal: {files[0].num} datapoints")
    return 1 if found else 0


def _add_keys(commands: Any) -> None:
    parser = commands.add_parser(
        "keys",
        help="make keys for an encrypted connection",
        description="Make certificates for a sender and a receiver. The receiver needs receiver.key_secret and "
        "sender.key; the sender needs sender.key_secret and receiver.key. Copy secret keys over a secure channel.",
    )
    parser.add_argument("directory", metavar="DIR", help="output directory, created if missing")
    parser.set_defaults(command=_keys, prog=parser.prog)


def _keys(options: argparse.Namespace) -> int:
    for path in make_keys(options.directory):
        print(path)
    return 0


def _add_migrate(commands: Any) -> None:
    parser = commands.add_parser(
        "migrate",
        help="rewrite programs for tensorpack.dataflow or ELEKTRONN",
        description="Rewrite the imports of programs for tensorpack.dataflow, for its stand-alone package, or for "
        "ELEKTRONN. Print the changes as a diff, and to stderr what has to be changed by hand, as FILE:LINE:COLUMN. "
        "The exit code is 1 if anything is left, or if a file could not be read.",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="a Python file")
    parser.add_argument("--write", action="store_true", help="write the changes into the files, too")
    parser.set_defaults(command=_migrate, prog=parser.prog)


def _migrate(options: argparse.Namespace) -> int:
    changed = left = failed = 0
    for path in options.files:
        try:
            done = migrate(path, write=options.write)
        except (OSError, ValueError) as error:
            failed += 1
            print(f"{options.prog}: {error}", file=sys.stderr)
            continue
        changed += bool(done.diff)
        left += sum(finding.kind == "left" for finding in done.findings)
        sys.stdout.write(done.diff)
        for note in done.notes():
            print(note, file=sys.stderr)
    verb = "changed" if options.write else "to change with --write"
    summary = f"files: {len(options.files)}, {verb}: {changed}, not read: {failed}; places to change by hand: {left}"
    print(summary, file=sys.stderr)
    return 1 if left or failed else 0


def _add_send(commands: Any) -> None:
    parser = _flow_parser(
        commands,
        "send",
        _send,
        "send the datapoints of a flow to a RemoteDataZMQ",
        "Send one pass of a flow, and the end of the pass, to a RemoteDataZMQ.",
    )
    parser.add_argument("address", metavar="ADDR", help="tcp://HOST:PORT")
    parser.add_argument("--repeat", action="store_true", help="send pass after pass, as one endless pass")
    parser.add_argument("--bind", action="store_true", help="bind to ADDR instead of connecting to it")
    parser.add_argument("--curve", metavar="PATH", help="directory with sender.key_secret and receiver.key")
    parser.add_argument("--insecure", action="store_true", help="with --bind, accept other machines without keys")
    parser.add_argument("--hwm", type=int, metavar="N", help="maximum number of datapoints in flight")
    parser.add_argument(
        "--hwm-bytes", type=int, metavar="N", default=HWM_BYTES, help="maximum bytes in flight (%(default)s)"
    )
    parser.add_argument(
        "--heartbeat", type=float, metavar="SECONDS", default=HEARTBEAT, help="heartbeat interval (%(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="time to wait for a receiver (default: unlimited)"
    )
    parser.add_argument("--name", metavar="NAME", help="name of the sender, if a different process sends each pass")


def _send(options: argparse.Namespace) -> int:
    with flow_named(options.flow) as flow:
        num = send_dataflow_zmq(
            RepeatedData(flow, -1) if options.repeat else flow,
            options.address,
            options.hwm,
            bind=options.bind,
            hwm_bytes=options.hwm_bytes,
            heartbeat=options.heartbeat,
            timeout=options.timeout,
            curve=options.curve,
            insecure=options.insecure,
            name=options.name,
        )
    print(f"{options.address}: {num} datapoints taken")
    return 0


def _add_speed(commands: Any) -> None:
    parser = _flow_parser(
        commands,
        "speed",
        _speed,
        "measure the speed of a flow",
        "Measure how many datapoints per second a flow yields, with a progress bar.",
    )
    parser.add_argument(
        "--size", type=int, metavar="N", default=5000, help="number of datapoints to measure (%(default)s)"
    )
    parser.add_argument(
        "--warmup", type=int, metavar="N", default=0, help="number of datapoints to read first (%(default)s)"
    )


def _speed(options: argparse.Namespace) -> int:
    with flow_named(options.flow) as flow:
        speed = TestDataSpeed(flow, options.size, options.warmup).start()
    if not speed:
        print(
            f"{options.flow}: no datapoint is left after --warmup {options.warmup}: give a smaller one", file=sys.stderr
        )
        return 1
    print(f"{options.flow}: {speed:.6g} datapoints per second")
    return 0


def _add_profile(commands: Any) -> None:
    parser = _flow_parser(
        commands,
        "profile",
        _profile,
        "measure what each node of a flow costs, and predict its speed with workers",
        "Run a flow in this process, without its workers; print what each node costs, the speed predicted "
        "with workers, and which runner to use.",
    )
    parser.add_argument(
        "--seconds", type=float, metavar="S", default=10.0, help="how long to measure, about (%(default)s)"
    )


def _profile(options: argparse.Namespace) -> int:
    with flow_named(options.flow) as flow:
        print(profile(flow, options.seconds))
    return 0


def _add_report(commands: Any) -> None:
    parser = _flow_parser(
        commands,
        "report",
        _report,
        "run a flow and say where the time goes",
        "Iterate a flow for a while, and print where the time goes and what the bottleneck is.",
    )
    parser.add_argument("--seconds", type=float, metavar="S", default=10.0, help="how long to run (%(default)s)")
    parser.add_argument("--html", metavar="PATH", help="write the report as an HTML page, too")
    parser.add_argument("--trace", metavar="PATH", help="write a trace for ui.perfetto.dev, too")


def _report(options: argparse.Namespace) -> int:
    with flow_named(options.flow) as flow:
        for _ in _running(flow, options.seconds):
            DataFlow.statistics(flow)  # so that the nodes above the workers are sampled
        print(DataFlow.report(flow))
        if options.html:
            print(DataFlow.report(flow, options.html))
        if options.trace:
            DataFlow.trace(flow, options.trace)
            print(options.trace)
    return 0


def _add_top(commands: Any) -> None:
    parser = _flow_parser(
        commands,
        "top",
        _top,
        "run a flow and watch where the time goes",
        "Iterate a flow, pass after pass, and show twice a second where the time goes. Ctrl-C ends it.",
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="how long to run (default: until Ctrl-C)")


def _top(options: argparse.Namespace) -> int:
    flow = flow_named(options.flow)
    live = optional("rich.live", "top", "the command top needs")
    text = optional("rich.text", "top", "the command top needs")
    with flow, live.Live(auto_refresh=False) as view:
        for _ in _running(flow, options.seconds):
            view.update(text.Text(DataFlow.report(flow)), refresh=True)
        view.update(text.Text(DataFlow.report(flow)), refresh=True)
    return 0


_VIEW_SECONDS: Final = 0.5


def _running(flow: DataFlow, seconds: float | None) -> Iterator[None]:
    """Iterate a flow, pass after pass, for `seconds` or without end. Yields at once, then twice a second."""
    now = time.monotonic()
    end = math.inf if seconds is None else now + checked_seconds("the command", "--seconds", seconds)
    next_view = now  # the first view with the first datapoint
    while now < end:
        is_empty = True
        for dp in DataFlow.__iter__(flow):
            del dp
            is_empty = False
            now = time.monotonic()
            if now >= end:
                return
            if now >= next_view:
                yield
                next_view = now + _VIEW_SECONDS
        if is_empty:
            raise ValueError(f"a pass of {type(flow).__name__} is empty")


class NoSuchFlow(ValueError):
    """A name on the command line is not that of a flow."""


def flow_named(name: str) -> DataFlow:
    """Return the flow ``module:flow``; a function or class is called, and its result is the flow.

    Raises:
        NoSuchFlow: There is no such module, it has no such name, or the object is not a dataflow.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise NoSuchFlow(f"name a flow as MODULE:FLOW, such as feeding:make_flow, not {name!r}")
    try:
        found = importlib.util.find_spec(module_name)
    except ImportError:  # raised by a parent package
        found = None
    if found is None:
        raise NoSuchFlow(f"there is no module {module_name!r} in this folder or on Python's search path")
    value: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise NoSuchFlow(f"there is no {part!r} in {name.removesuffix(part).rstrip('.:')}")
        value = getattr(value, part)
    if not isinstance(value, DataFlow) and callable(value):
        value = value()
    if not isinstance(value, DataFlow):
        raise NoSuchFlow(f"{name} is a {type(value).__name__}, not a dataflow or a function that makes one")
    return value


if __name__ == "__main__":
    sys.exit(main())
