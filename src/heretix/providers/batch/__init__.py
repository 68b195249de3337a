"""Batch providers: many requests at once, answered within a day, at half price."""
