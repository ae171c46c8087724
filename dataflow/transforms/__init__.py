"""Transforms: nodes that change, select, combine or reorder datapoints."""
