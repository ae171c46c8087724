"""Workers: processes and threads that are started, supervised and stopped."""
