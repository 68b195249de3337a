"""The web app: pages and an API over the same functions as the command line."""
