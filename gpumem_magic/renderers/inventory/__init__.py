"""What holds memory now, as text and HTML."""
