"""A real device: its allocator's history, its driver's readings."""
