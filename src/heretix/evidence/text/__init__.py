"""Text: folded, excerpted, screened for instructions."""
