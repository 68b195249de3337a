"""Pages for people: each module is one router over the functions that the command line calls."""
