"""What a flow does, shown to people."""
