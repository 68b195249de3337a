"""The version, in one place: the package, the records and the build read it here."""

VERSION = "0.1.0"
