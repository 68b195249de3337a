"""Core of every room: errors, settings, canonical JSON, clocks, YAML with lines, lenses."""
