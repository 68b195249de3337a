"""The manifest for Kubernetes: what KubeRay and Kubernetes accept, checked without either."""

import copy
import tomllib
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
MANIFEST = yaml.safe_load((ROOT / "deploy" / "raycluster.yaml").read_text())

QUANTITY = {"type": "string", "pattern": r"^\d+(\.\d+)?(m|Ki|Mi|Gi|Ti|k|M|G|T)?$"}
NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}


def record(required, **properties):
    """An object that has these and nothing else."""
    closed = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**closed, "required": list(required)}


AMOUNTS = record(("cpu", "memory"), cpu=QUANTITY, memory=QUANTITY)
CONTAINER = record(
    ("name", "image", "resources"),
    name=NAME,
    image={"type": "string", "pattern": r"^[a-z0-9./-]+:[\w.-]+$"},
    ports={
        "type": "array",
        "items": record(
            ("name", "containerPort"),
            name={"type": "string", "pattern": "^[a-z0-9-]{1,15}$"},
            containerPort={"type": "integer", "minimum": 1, "maximum": 65535},
        ),
    },
    envFrom={
        "type": "array",
        "items": record(("secretRef",), secretRef=record(("name",), name=NAME)),
    },
    resources=record(("requests", "limits"), requests=AMOUNTS, limits=AMOUNTS),
)
POD = record(
    ("spec",),
    spec=record(
        ("containers",),
        terminationGracePeriodSeconds={"type": "integer", "minimum": 0},
        containers={"type": "array", "minItems": 1, "items": CONTAINER},
    ),
)
PARAMETERS = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 0}
SCHEMA = record(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata=record(("name",), name=NAME),
    spec=record(
        ("rayVersion", "headGroupSpec", "workerGroupSpecs"),
        rayVersion={"type": "string", "pattern": r"^2\.\d+\.\d+$"},
        headGroupSpec=record(
            ("rayStartParams", "template"), rayStartParams=PARAMETERS, template=POD
        ),
        workerGroupSpecs={
            "type": "array",
            "minItems": 1,
            "items": record(
                (
                    "groupName",
                    "replicas",
                    "minReplicas",
                    "maxReplicas",
                    "rayStartParams",
                    "template",
                ),
                groupName=NAME,
                replicas=COUNT,
                minReplicas=COUNT,
                maxReplicas=COUNT,
                rayStartParams=PARAMETERS,
                template=POD,
            ),
        },
    ),
)
CHECK = Draft202012Validator(SCHEMA)


def containers(manifest):
    """Every container of it."""
    spec = manifest["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [one for group in groups for one in group["template"]["spec"]["containers"]]


def test_the_manifest_is_a_ray_cluster():
    """Every key is one of `ray.io/v1`'s or a pod's, where it belongs, with a value of its kind."""
    assert [error.message for error in CHECK.iter_errors(MANIFEST)] == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: m["spec"].pop("headGroupSpec"),
        lambda m: m["spec"]["workerGroupSpecs"][0].update(replica=2),
        lambda m: m["spec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
        lambda m: containers(m)[0]["resources"]["limits"].update(cpu="two"),
        lambda m: containers(m)[1].update(envForm=[]),
    ],
)
def test_a_mistake_in_it_would_be_seen(spoil):
    """A missing group, a misspelt key, a number where Ray wants text: each is refused."""
    spoilt = copy.deepcopy(MANIFEST)
    spoil(spoilt)
    assert not CHECK.is_valid(spoilt)


def test_the_head_does_no_work_and_workers_fit_their_bounds():
    """A head with processors of its own could be killed by the work of a run."""
    assert MANIFEST["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in MANIFEST["spec"]["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_keys_come_from_a_secret_and_stand_nowhere_in_it():
    """All pods have the same secret, and the same image."""
    for one in containers(MANIFEST):
        assert one["envFrom"] == [{"secretRef": {"name": "heretix"}}]
    assert len({one["image"] for one in containers(MANIFEST)}) == 1


def test_its_ray_is_one_that_heretix_takes():
    """The version in the manifest is within the bounds of the extra, and the one that docs name."""
    version = MANIFEST["spec"]["rayVersion"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (ray,) = [one for one in map(Requirement, extras["ray"]) if one.name == "ray"]
    assert ray.specifier.contains(version)
    assert f"rayproject/ray:{version}-" in (ROOT / "docs" / "cluster.md").read_text()
