"""Judging: models measure what evidence did, and rules say what follows."""
