"""A plug-in package that adds one of each; docs/plugins.md shows these files."""
