"""Serialisation shared by files and the network: msgpack, with the bytes of arrays beside it."""
