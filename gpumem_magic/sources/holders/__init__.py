"""Who holds the memory of a device: every block in use, and the shortest way to it."""
