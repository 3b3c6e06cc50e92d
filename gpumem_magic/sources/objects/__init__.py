"""Python objects: who owns a tensor, what names mean, what a cell left."""
