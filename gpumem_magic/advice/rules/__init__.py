"""One problem each: how to see it, what to change, and cells that show it."""
