"""What every room uses: errors, settings, canonical JSON, clocks, YAML with lines, lenses."""
