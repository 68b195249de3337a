"""The mathematics of belief: numbers in, records out. No files, clock, network or environment."""
