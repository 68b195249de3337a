"""The demonstration world: made by the same parts as a real one, and marked wherever it shows."""
