"""The conformance suite as an author of a plug-in uses it: on the provider of the guide."""

import sys
from pathlib import Path

from conformance import ProviderConformance

from faultserver import ANSWER, document
from heretix.providers.base import Request

sys.path.append(str(Path(__file__).parents[1] / "plugin_package"))
try:
    from heretix_acme.provider import AcmeProvider
finally:
    sys.path.pop()


class TestAcme(ProviderConformance):
    """All that is asked of our own, but for what its protocol can't tell."""

    name, key_variable, base_path = "acme", "ACME_API_KEY", "/other"
    requests = (Request(model="small", system="", user="So?", max_output_tokens=64),)
    endings = ()
    numbers_answers = False

    def open(self, target):
        """The adapter."""
        return AcmeProvider(target)

    def answer(self, text=ANSWER, ending="stop"):
        """As Acme sends it."""
        return document({"output": text, "model": "small-1", "usage": {"in": 50, "out": 9}})
