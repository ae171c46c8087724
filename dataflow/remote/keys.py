"""Certificate files for CURVE, ZeroMQ's encryption, in the format of `zmq.auth`.

A directory holds ``sender.key_secret`` or ``receiver.key_secret`` (or both), each with a pair of keys, and public keys
in files ``*.key``. A sender knows one receiver, ``receiver.key``; a receiver accepts senders that have the secret of
one of the other public keys in its directory.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["RECEIVER", "SENDER", "Keys", "load_keys", "make_keys"]

SENDER: Final = "sender"
RECEIVER: Final = "receiver"
_PUBLIC: Final = ".key"
_SECRET: Final = ".key_secret"
_KEY_CHARS: Final = 40  # in the alphabet of Z85


class Keys(NamedTuple):
    """This side's key pair, and the public keys of peers that may connect or be connected to."""

    public: bytes
    secret: bytes
    peers: tuple[bytes, ...]


def make_keys(directory: str | os.PathLike[str]) -> list[Path]:
    """Make certificates for a sender and a receiver; those with secret keys are readable by their owner only.

    Args:
        directory: Created if missing.

    Returns:
        The paths of ``sender.key``, ``sender.key_secret``, ``receiver.key`` and ``receiver.key_secret``.

    Raises:
        FileExistsError: One of them exists already; none is changed.
    """
    import zmq.auth  # here, since few programs need it

    folder = Path(directory)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = [folder / (name + suffix) for name in (SENDER, RECEIVER) for suffix in (_PUBLIC, _SECRET)]
    for path in paths:
        if os.path.lexists(path):
            raise FileExistsError(f"{path} exists already. Choose another directory, or remove the file")
    for path in paths:
        # zmq.auth writes into an existing file: so no other user can read it at any time. O_EXCL: no link was put there
        # meanwhile.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if path.suffix == _SECRET else 0o644))
    for name in (SENDER, RECEIVER):
        zmq.auth.create_certificates(folder, name)
    return paths


def load_keys(path: str | os.PathLike[str], name: str) -> Keys:
    """Load the keys of one side.

    Args:
        path: A directory with the certificate ``name.key_secret``, or another file of that kind. The public keys of the
            peers are in the same directory.
        name: `SENDER` or `RECEIVER`.

    Raises:
        FileNotFoundError: There is no such file, or no public key of a peer.
        PermissionError: Others may read the secret key.
        ValueError: A file is not a certificate of the expected kind.
    """
    file = Path(path)
    if file.is_dir():
        file /= name + _SECRET
    public, secret = _load(file)
    if os.name == "posix" and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(f"users other than its owner may read {file}, which holds a secret key: chmod 600 {file}")
    if secret is None:
        raise ValueError(f"{file} is not a secret certificate: it has no secret key. Pass a file *{_SECRET}")
    known = [file.parent / (RECEIVER + _PUBLIC)] if name == SENDER else sorted(file.parent.glob("*" + _PUBLIC))
    peers = dict.fromkeys(key for key, _ in map(_load, known) if key != public)
    if not peers:
        raise FileNotFoundError(
            f"there is no public key of a {SENDER if name == RECEIVER else RECEIVER} in {file.parent}. Copy it there "
            f"from where it was made: a file *{_PUBLIC}"
        )
    return Keys(public, secret, tuple(peers))


def _load(file: Path) -> tuple[bytes, bytes | None]:
    import zmq.auth
    from zmq.utils import z85

    if not file.exists():
        raise FileNotFoundError(f"there is no certificate {file}. Make keys with python -m dataflow keys DIR")
    try:
        public, secret = zmq.auth.load_certificate(file)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{file} is not a certificate of zmq.auth: {error}") from error
    if any(len(key) != _KEY_CHARS for key in (public, secret) if key is not None):
        raise ValueError(f"{file} is not a certificate of zmq.auth: a key has {_KEY_CHARS} characters")
    try:
        for key in (public, secret or b""):
            z85.decode(key)
    except (ValueError, KeyError, struct.error) as error:
        raise ValueError(f"{file} is not a certificate of zmq.auth: a key is not in Z85") from error
    return public, secret
