"""Sources: nodes without input, which datapoints come from."""
