"""The command line: parse, call, present. Rules live below it."""

from heretix.cli.app import main

__all__ = ["main"]
