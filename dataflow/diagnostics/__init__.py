"""Diagnostics: nodes that print datapoints and measure speed, and a progress bar."""
