"""Everything a plug-in can get wrong."""

MOCK = "a name that is built in"
ENDPOINT = "no search"
BANK = "version: wreck\nsystem: s\n"


def fail(vector):
    """Raise."""
    raise ZeroDivisionError("wrecked")
