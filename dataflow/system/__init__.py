"""What the operating system does: processes and threads, descriptors, signals, pickles, URLs."""
