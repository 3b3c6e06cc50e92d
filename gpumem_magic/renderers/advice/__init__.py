"""What changes save, and the rules, as text and HTML."""
