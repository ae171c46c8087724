"""Channels: message passing between workers and their consumer."""
