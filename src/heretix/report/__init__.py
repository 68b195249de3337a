"""Views of records: for the terminal, for notebooks."""
