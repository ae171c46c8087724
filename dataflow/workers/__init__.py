"""Threads and processes: started, watched, stopped."""
