"""Providers of answers: one file each, behind the small protocol in `base`."""
