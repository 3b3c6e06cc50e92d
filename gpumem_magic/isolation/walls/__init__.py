"""What keeps a process in, below Python: what it shares becomes its own, the rest is refused."""
