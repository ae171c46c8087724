"""Migration: rewrites programs for tensorpack.dataflow and ELEKTRONN so that they import this library."""
