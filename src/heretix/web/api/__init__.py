"""`/api/v1`: what programs use. Each module is one resource over the functions that pages call."""
