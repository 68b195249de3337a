"""The JSON schema of artifacts, as published with the package.

`python -m heretix.measurement.schema` writes it anew after a change to the record.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any, Final

from heretix.measurement.record import Artifact

__all__ = ["artifact_schema", "packaged_schema"]

_FILE: Final = "artifact-1.schema.json"


def artifact_schema() -> dict[str, Any]:
    """The schema that the record's types imply."""
    schema = Artifact.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def packaged_schema() -> dict[str, Any]:
    """The schema that the package ships."""
    text = (resources.files(__package__) / _FILE).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


if __name__ == "__main__":
    target = Path(__file__).with_name(_FILE)
    target.write_text(json.dumps(artifact_schema(), indent=2) + "\n", encoding="utf-8")
