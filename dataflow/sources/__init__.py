"""Where datapoints come from."""
