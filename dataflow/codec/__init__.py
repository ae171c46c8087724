"""Values to message bodies, and back."""
