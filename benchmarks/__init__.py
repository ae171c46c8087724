"""Benchmarks: the same work, done by this library and by others that move datapoints between processes."""
