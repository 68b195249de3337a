"""A bank of five wordings: the path of a YAML file, or its text."""

from importlib import resources

BANK = resources.files(__package__) / "acme_v1.yaml"
