"""Msgpack with arrays beside it: what files and the network share."""
