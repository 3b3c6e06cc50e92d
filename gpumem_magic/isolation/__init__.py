"""A process of its own for code that must change nothing: how it is made and watched, what of it
would reach outside (`effects/`), and what stands around it (`walls/`). Knows nothing of memory."""
