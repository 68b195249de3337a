"""Measuring: the runner, the record it leaves, and the record's verification."""
