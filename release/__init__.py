"""What a release is made of: the archives for a package index, checked and tried (``make dist``)."""
