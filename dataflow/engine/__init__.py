"""The engine: workers, schedules of their work, and the loop that waits for both."""
