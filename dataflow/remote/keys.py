"""Keys for CURVE, the encryption of ZeroMQ: files, and what is made of them.

A key file is text: a line ``public:`` and a line ``secret:`` with a pair of keys, and a line ``peer:`` for each public
key that is let in. Only its owner may read it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

import zmq

__all__ = ["RECEIVER", "SENDER", "Keys", "load_keys", "make_keys"]

SENDER: Final = "sender.key"
RECEIVER: Final = "receiver.key"
_KEY_CHARS: Final = 40  # in the alphabet of Z85


class Keys(NamedTuple):
    """Who we are, and whom we know."""

    public: bytes
    secret: bytes
    peers: tuple[bytes, ...]


def make_keys(directory: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Make a pair of key files that know each other: ``sender.key`` and ``receiver.key``, readable by their owner only.

    Args:
        directory: Is made if it is not there.

    Returns:
        The two paths.

    Raises:
        FileExistsError: One of them is there already; neither is touched.
    """
    folder = Path(directory)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = folder / SENDER, folder / RECEIVER
    for path in paths:
        if path.exists():
            raise FileExistsError(f"{path} is there already. Choose another directory, or remove the file")
    pairs = [zmq.curve_keypair() for _ in paths]
    for path, own, other in zip(paths, pairs, reversed(pairs), strict=True):
        _write(path, own, other[0])
    return paths


def _write(path: Path, own: tuple[bytes, bytes], peer: bytes) -> None:
    # O_EXCL: nobody has put a link there meanwhile; 0600 from the first byte on.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(
            "# A key of dataflow. Whoever has this file may speak for its owner: keep it secret.\n"
            f"public: {own[0].decode()}\nsecret: {own[1].decode()}\n"
            f"# Who is let in: one line for each public key.\npeer: {peer.decode()}\n"
        )


def load_keys(path: str | os.PathLike[str], name: str) -> Keys:
    """The keys in a file, or in the file `name` of a directory.

    Raises:
        FileNotFoundError: There is none.
        PermissionError: Others may read it.
        ValueError: It holds something else.
    """
    file = Path(path)
    if file.is_dir():
        file /= name
    if not file.exists():
        raise FileNotFoundError(f"there is no key file {file}. Make keys with python -m dataflow keys DIR")
    if os.name == "posix" and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(f"others than its owner may read {file}, which holds a secret key: chmod 600 {file}")
    found: dict[str, list[bytes]] = {"public": [], "secret": [], "peer": []}
    for line in file.read_text("ascii", "replace").splitlines():
        what, _, key = line.partition(":")
        if line.strip() and not line.startswith("#"):
            if what.strip() not in found or len(key.strip()) != _KEY_CHARS:
                raise ValueError(f"{file} is no key file: it has a line that is no key")
            found[what.strip()].append(key.strip().encode())
    if len(found["public"]) != 1 or len(found["secret"]) != 1 or not found["peer"]:
        raise ValueError(f"{file} is no key file: it needs one public key, one secret key and a peer")
    return Keys(found["public"][0], found["secret"][0], tuple(found["peer"]))
