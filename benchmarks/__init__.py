"""The same work, done by this library and by every other one that moves datapoints between processes."""
