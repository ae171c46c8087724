"""Codecs: values to message bodies, and back."""
