"""Floor that `bench/sampling.py` compares with: the same work without Heretix.

python bench/floor.py calls BASE_URL SAMPLES CONCURRENCY
python bench/floor.py bootstraps CLAIMS
"""

from __future__ import annotations

import asyncio
import json
import sys


async def calls(base_url: str, samples: int, concurrency: int) -> None:
    """Calls of the size that Heretix makes, by aiohttp; answers are read and dropped."""
    import aiohttp

    # About as long as the schema, the instructions and the wordings of a measurement.
    schema = {"type": "object", "description": "p" * 180}
    shape = {"name": "answer", "schema": schema, "strict": True}
    numbers = iter(range(samples))

    async def work(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = {
                "model": "sim",
                "messages": [
                    {"role": "system", "content": "s" * 640},
                    {"role": "user", "content": f"{number} {'q' * 400}"},
                ],
                "max_tokens": 1024,
                "response_format": {"type": "json_schema", "json_schema": shape},
            }
            async with session.post(f"{base_url}/chat/completions", json=body) as response:
                answer = json.loads(await response.read())
            assert "prob_true" in answer["choices"][0]["message"]["content"]

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(work(session) for _ in range(concurrency)))


def bootstraps(claims: int, *, T: int = 8, R: int = 2, B: int = 5000) -> None:
    """The estimates of so many claims."""
    from heretix.belief.estimator import estimate

    logits = {f"{t:02}": [(t - 4) / 8 + r / 16 for r in range(R)] for t in range(T)}
    for claim in range(claims):
        estimate(logits, seed=claim, B=B)


def main() -> None:
    """Run from the command line."""
    match sys.argv[1:]:
        case ["calls", base_url, samples, concurrency]:
            asyncio.run(calls(base_url, int(samples), int(concurrency)))
        case ["bootstraps", claims]:
            bootstraps(int(claims))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
