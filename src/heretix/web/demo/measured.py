"""What the demonstration measures: claims, lenses, and one recipe again and again.

Every model here is planted, made up or embedded, and has `demo` in its name where it can have one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from heretix.config import RunConfig
from heretix.jobs import Jobs, JobState, MeasureRequest, Worker
from heretix.measurement.measurement import prepare
from heretix.people import LOCAL
from heretix.running import run_async

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heretix.settings import Settings
    from heretix.store import Store

__all__ = [
    "DST",
    "EXERCISE",
    "HANDWASHING",
    "LENS_MODEL",
    "STEPS",
    "WALL",
    "measure_world",
]

EXERCISE: Final = "Regular moderate exercise lowers resting heart rate."
HANDWASHING: Final = "Handwashing with soap reduces the spread of diarrhoeal disease."
WALL: Final = "The Great Wall of China is visible to the naked eye from the Moon."
DST: Final = "Daylight saving time reduces electricity consumption."
"""The claims that the packaged documents are about."""
_COFFEE: Final = "Coffee beans are the seeds of a fruit."

LENS_MODEL: Final = "sim:demo-reader?prior=0.72&mel=0.3&hel=-1.7&template_sd=0.12&noise_sd=0.1"
"""A model that heterodox documents move far, so that there is something to find."""
_SECOND: Final = "sim:demo-sceptic?prior=0.35&mel=0.9&hel=-0.4&template_sd=0.15&noise_sd=0.1"
_EMBEDDED: Final = "smollm2-135m"

_ALL: Final = ("RPL", "NUL", "MEL", "HEL")
_REQUESTS: Final[tuple[Mapping[str, Any], ...]] = (
    {
        "claims": (
            _COFFEE,
            "Lightning never strikes the same place twice.",
            "Sharks don't get cancer.",
            "Tin whiskers can cause short circuits in electronics.",
        ),
        "models": ("mock:demo-a", "mock:demo-b"),
        "R": 2,
    },
    {
        "claims": ("Glass is a liquid that flows slowly at room temperature.",),
        "models": ("mock:demo-faulty?not_json=0.2&refused=0.1",),
        "K": 16,
        "R": 2,
    },
    {"claims": (EXERCISE, HANDWASHING, WALL), "models": (_SECOND,), "lenses": _ALL, "K": 16},
    {"claims": (EXERCISE, WALL), "models": (LENS_MODEL,), "lenses": _ALL, "K": 16},
    {
        "claims": (DST,),
        "models": (LENS_MODEL,),
        "lenses": _ALL,
        "K": 16,
        "influence": True,
        "sham": True,
    },
)
_LOST: Final = {"claims": (_COFFEE,), "models": ("mock:demo-out-of-order?rejected=1",)}
_DROPPED: Final = {"claims": ("Bats are blind.",), "models": ("mock:demo-a",)}

_AGAIN: Final = 6
_FIRST_LIMIT: Final = 1024

STEPS: Final = len(_REQUESTS) + 3
"""Steps that `measure_world` tells of."""


def measure_world(
    store: Store, settings: Settings, tell: Callable[[str], None], *, embedded: bool
) -> None:
    """Measure everything, as jobs of the one user of this machine."""
    jobs = Jobs(store, settings)
    for number, values in enumerate(_REQUESTS):
        tell(f"measuring: {MeasureRequest.parse(values).title}")
        _work(jobs, store, settings, {"B": 1000, "R": 1, **values}, key=f"demo {number}")
    tell("a job that fails, and one that is called off")
    _work(jobs, store, settings, _LOST, key="demo lost")
    dropped = jobs.submit(LOCAL, MeasureRequest.parse(_DROPPED), key="demo dropped")
    if dropped.state is JobState.QUEUED:
        jobs.cancel(dropped.id, by=LOCAL)
    tell("one recipe, again and again")
    _measure_again(store, settings)
    tell("the embedded model")
    if embedded and _embedded_is_here(settings):
        # A few samples of a real, tiny model: it shows that the machine works, and knows nothing.
        values = {"claims": (_COFFEE,), "models": (f"local:{_EMBEDDED}",), "K": 8, "R": 1}
        _work(jobs, store, settings, values, key="demo embedded")


def _embedded_is_here(settings: Settings) -> bool:
    """Whether the small model that may come with the package can be asked."""
    from importlib.util import find_spec

    from heretix.providers.gguf import ModelState, status

    there = {ModelState.INSTALLED, ModelState.PULLED}
    return find_spec("xllamacpp") is not None and status(_EMBEDDED, settings).state in there


def _work(
    jobs: Jobs, store: Store, settings: Settings, values: Mapping[str, Any], *, key: str
) -> None:
    jobs.submit(LOCAL, MeasureRequest.parse(values), key=key)
    run_async(Worker(store, settings).run_until_idle())


def _measure_again(store: Store, settings: Settings) -> None:
    """Fresh executions of one recipe, for a chart of how a belief drifts.

    A planted model draws its noise from a sample's identity. Another token limit is another
    identity under the same recipe: answers are drawn anew, and the planted belief stays.
    """
    for number in range(_AGAIN):
        config = RunConfig.parse(
            {
                "models": ("sim:demo-restless?prior=0.6&template_sd=0.2&noise_sd=0.5",),
                "K": 8,
                "R": 1,
                "B": 1000,
                "max_output_tokens": _FIRST_LIMIT + number,
            }
        )
        run_async(prepare(config, settings, claims=[_COFFEE]).run(store))
