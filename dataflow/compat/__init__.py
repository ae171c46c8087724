"""For ported programs: old names, ELEKTRONN's interface, and the rewriter of sources."""
