"""Every metric: samplers, statistics, reports, profiles, and nodes that show what passes through them."""
