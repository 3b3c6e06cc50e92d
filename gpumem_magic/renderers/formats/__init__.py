"""Files: JSON, CSV, text and pages."""
