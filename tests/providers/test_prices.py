"""The price table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heretix.core.errors import ConfigError
from heretix.core.settings import Settings
from heretix.providers.catalog import (
    FREE,
    Price,
    PriceTable,
    cost_micros,
    default_model,
    load_prices,
    parse_model,
)

if TYPE_CHECKING:
    from pathlib import Path

GPT_5 = Price(Decimal("1.25"), Decimal(10), date(2026, 10, 3), Decimal("0.5"))

WritePrices = Callable[[str], Settings]


@pytest.fixture
def write(tmp_path: Path) -> WritePrices:
    """Write a price file and settings that name it."""

    def write_text(text: str) -> Settings:
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return Settings(prices_file=path)

    return write_text


@pytest.fixture
def packaged() -> PriceTable:
    """The table as it is shipped."""
    return load_prices(Settings())


def test_a_price_is_found_by_name(packaged: PriceTable):
    """The bare name and the name with its home in front are one model."""
    assert packaged.find(parse_model("gpt-5")) == GPT_5
    assert packaged.find(parse_model("openai:gpt-5")) == GPT_5


@pytest.mark.parametrize(
    "name", ["gpt-5-2025-08-07", "gpt-5-20250807", "claude-haiku-4-5-20251001"]
)
def test_a_dated_snapshot_has_the_price_of_its_model(packaged: PriceTable, name: str):
    """A day at the end of a name makes no other model."""
    base = "gpt-5" if name.startswith("gpt") else "claude-haiku-4-5"
    assert packaged.find(parse_model(name)) == packaged.find(parse_model(base)) is not None


@pytest.mark.parametrize(
    "name",
    [
        "gpt-5.3",
        "gpt-5.9",
        "gpt-5-chat-latest",
        "gpt-5-2025-13",
        "gpt-5-0807",
        "gpt-50",
        "openai:gpt",
        "claude-opus-5-6",
        "gemini-2.5-flash-001",
        "openrouter:openai/gpt-5",
        "openai-compatible:gpt-5",
        "ollama:llama3",
    ],
)
def test_an_unlisted_model_has_no_price(packaged: PriceTable, name: str):
    """Unknown is None: neither zero nor the price of a model with a similar name."""
    assert packaged.find(parse_model(name)) is None


def test_sizes_of_one_family_have_prices_of_their_own(packaged: PriceTable):
    """`gpt-5` doesn't stand for `gpt-5-mini` or `gpt-5.5`."""
    names = ("gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-5.5")
    inputs = [packaged.find(parse_model(name)).input_usd_per_mtok for name in names]
    assert inputs == [Decimal("1.25"), Decimal("0.25"), Decimal("0.05"), Decimal(5)]


@pytest.mark.parametrize("name", ["mock:gpt-5", "mock:gpt-5?error=0.1", "local:smollm2-135m"])
def test_what_runs_here_costs_exactly_nothing(packaged: PriceTable, name: str):
    """A mock of a dear model is free."""
    price = packaged.find(parse_model(name))
    assert price == FREE
    assert cost_micros(price, 10**9, 10**9) == 0


def test_models_that_are_used_by_default_have_a_price(packaged: PriceTable):
    """Whoever sets a key and nothing else is told what it costs."""
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        model = default_model(Settings(env={variable: "x"}))
        assert packaged.find(model) is not None, model


def test_packaged_prices_are_plausible(packaged: PriceTable):
    """Every entry is dated, and charges a few times as much for output as for input: a decimal point
    in the wrong place shows."""
    for models in packaged.prices.values():
        for name, price in models.items():
            assert date(2026, 1, 1) <= price.as_of <= date(2026, 11, 15), name
            assert 0 < price.input_usd_per_mtok <= 30, name
            assert 4 <= price.output_usd_per_mtok / price.input_usd_per_mtok <= 9, name
            assert price.batch_discount == Decimal("0.5"), name


def test_cost_is_in_micro_dollars():
    """A million tokens each way of a 1.25/10 dollar model cost 11.25 dollars."""
    assert cost_micros(GPT_5, 1_000_000, 1_000_000) == 11_250_000
    assert cost_micros(GPT_5, 200, 20) == 450
    assert cost_micros(GPT_5, 0, 0) == 0


def test_cost_is_rounded_up():
    """A fraction of a micro-dollar counts as one, and a whole number of them stays whole."""
    assert cost_micros(GPT_5, 1, 0) == 2
    assert cost_micros(GPT_5, 4, 0) == 5
    tenth = Price(Decimal("0.1"), Decimal("0.2"), None)
    assert cost_micros(tenth, 10, 10) == 3
    assert cost_micros(tenth, 1, 1) == 1


@given(tokens=st.tuples(*[st.integers(0, 10**12)] * 2))
def test_cost_is_exact_before_rounding(tokens: tuple[int, int]):
    """Sums stay exact for any number of tokens: integers of hundredths agree."""
    hundredths = 125 * tokens[0] + 1000 * tokens[1]
    assert cost_micros(GPT_5, *tokens) == -(-hundredths // 100)


def test_a_batch_price_takes_the_discount_off():
    """Half off, once; unknown where the discount is."""
    batched = GPT_5.discount_for_batch()
    assert batched == Price(Decimal("0.625"), Decimal(5), GPT_5.as_of, None)
    assert batched.discount_for_batch() is None


def test_a_users_file_is_laid_over_the_packaged_one(write: WritePrices):
    """Given prices win, others stay, and new models and providers come in."""
    table = load_prices(
        write(
            "openai:\n"
            "  models:\n"
            "    gpt-5: {input: 1, output: 2.5, as_of: 2026-11-01}\n"
            "    gpt-5-2025-08-07: {input: 7, output: 8, as_of: 2026-11-01}\n"
            "openrouter:\n"
            "  models:\n"
            "    openai/gpt-5: {input: '1.30', output: 11, as_of: '2026-11-02'}\n"
        )
    )
    mine = table.find(parse_model("gpt-5"))
    assert mine == Price(Decimal(1), Decimal("2.5"), date(2026, 11, 1), Decimal("0.5"))
    assert table.find(parse_model("gpt-5-2025-08-07")).input_usd_per_mtok == 7
    assert table.find(parse_model("gpt-5-mini")).input_usd_per_mtok == Decimal("0.25")
    routed = table.find(parse_model("openrouter:openai/gpt-5"))
    assert routed == Price(Decimal("1.30"), Decimal(11), date(2026, 11, 2), None)
    assert load_prices(Settings()).find(parse_model("gpt-5")) == GPT_5


def test_a_users_discount_holds_for_the_whole_provider(write: WritePrices):
    """A block may hold a discount alone."""
    table = load_prices(write("openai: {batch_discount: 0.4}\n"))
    assert table.find(parse_model("gpt-5")).batch_discount == Decimal("0.4")
    assert table.find(parse_model("claude-opus-5")).batch_discount == Decimal("0.5")


def test_an_empty_file_changes_nothing(write: WritePrices, packaged: PriceTable):
    """Comments alone are fine."""
    assert load_prices(write("# nothing yet\n")) == packaged


def priced(*, price_in: str = "1", price_out: str = "1", as_of: str = "2026-11-01") -> str:
    """A file with one model, whose three values stand on lines 4 to 6."""
    values = f"      input: {price_in}\n      output: {price_out}\n      as_of: {as_of}\n"
    return f"openai:\n  models:\n    x:\n{values}"


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (1, "opnai: {}", r"unknown provider `opnai` \(did you mean `openai`\?\)"),
        (1, "mock: {}", "unknown provider `mock`"),
        (1, "just text", "a mapping of each provider to its value must stand here"),
        (1, "openai: }", "isn't YAML"),
        (2, "openai: {}\nopenai: {}", "`openai` stands here and on line 1"),
        (2, "openai:\n  model: {}", r"unknown key `openai.model` \(did you mean `models`\?\)"),
        (
            2,
            "openai:\n  batch_discount: 2",
            "`openai.batch_discount` must be at most 1, got 2",
        ),
        (3, "openai:\n  models:\n    x: 5", "`openai.models.x` must be a mapping, got 5"),
        (3, "openai:\n  models:\n    x: {cost: 1}", "unknown key `openai.models.x.cost`"),
        (
            3,
            "openai:\n  models:\n    x: {input: 1, as_of: 2026-11-01}",
            "`openai.models.x.output` is missing",
        ),
        (
            4,
            priced(price_in="-1"),
            "`openai.models.x.input` must be at least 0, got -1",
        ),
        (
            5,
            priced(price_out="free"),
            "`openai.models.x.output` must be a valid decimal, got 'free'",
        ),
        (5, priced(price_out=".inf"), "`openai.models.x.output` must be a finite number, got inf"),
        (5, priced(price_out="yes"), "`openai.models.x.output` Decimal input must be"),
        (5, priced(price_out="[1]"), "`openai.models.x.output` .*, got \\[1\\]"),
        (6, priced(as_of="today"), "`openai.models.x.as_of` must be a valid date .*, got 'today'"),
        (6, priced(as_of="[2026-10-03]"), "`openai.models.x.as_of` must be a valid date"),
    ],
)
def test_a_mistake_is_named_with_file_and_line(
    write: WritePrices, line: int, text: str, message: str
):
    """Each rule is enforced, and its message says where and what."""
    settings = write(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_prices(settings)
    assert str(caught.value).startswith(f"`{settings.prices_file}` line {line}: ")


def test_an_unreadable_file_is_refused(tmp_path: Path):
    """A missing file and one that isn't text are told apart."""
    with pytest.raises(ConfigError, match=r"`HERETIX_PRICES` .* can't be read: No such file"):
        load_prices(Settings(prices_file=tmp_path / "none.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="isn't UTF-8"):
        load_prices(Settings(prices_file=tmp_path / "latin.yaml"))
