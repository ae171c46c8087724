"""One file for each promise of the README: what a user relies on, whichever rooms keep it."""
