"""Views of records: for the terminal, notebooks, pages and pictures."""
