"""Engine: worker pool, schedules of their work, and the loop that waits for both."""
