"""Sources: nodes without an input, which produce datapoints."""
