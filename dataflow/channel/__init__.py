"""How messages move between workers and their consumer."""
