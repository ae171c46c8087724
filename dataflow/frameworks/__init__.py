"""Bridges to the libraries that train models: flows as their data sets, datapoints as their tensors."""
