"""Studies of validity: design, calibration, coherence, drift. Mathematics on numbers, no files."""
