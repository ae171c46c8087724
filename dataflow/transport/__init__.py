"""How datapoints move between workers and consumer."""
