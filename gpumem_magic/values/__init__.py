"""The frozen nouns: what was recorded, found out, advised, and is shown and kept."""
