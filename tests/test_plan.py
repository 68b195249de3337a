"""Plans and identities, against the definitions in the design."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heretix.config import RunConfig
from heretix.core.errors import ConfigError
from heretix.plan import make_plan
from heretix.prompts.bank import load_bank
from heretix.providers.catalog import parse_model

CLAIM = "Tariffs don't cause inflation."
BANK = load_bank("rpl_v1")
GPT5 = parse_model("gpt-5")


def plan(claim=CLAIM, model=GPT5, env_seed=None, **options):
    return make_plan(claim, model, BANK, RunConfig.parse(options), env_seed=env_seed)


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_identities_are_exactly_as_written():
    """run_id, cache_key, rotation and prompt hash follow the published formulas."""
    made = plan(K=8, R=2, T=8)
    version = BANK.version
    assert made.run_id == "heretix-rpl-" + sha(f"{CLAIM}|gpt-5|{version}|K=8|R=2")[:12]
    assert made.rotation_offset == int(sha(f"{CLAIM}|{version}")[:8], 16) % 16
    sample = made.samples[0]
    prompt = made.prompts[sample.paraphrase_idx]
    assert sample.prompt_sha256 == sha(f"{prompt.system}\n\n{prompt.user}")
    assert sample.cache_key == sha(f"{CLAIM}|gpt-5|{version}|{sample.prompt_sha256}|0|1024")


def test_the_seed_is_made_of_what_the_estimate_rests_on():
    """The derived seed follows its formula; the configuration wins over the environment."""
    made = plan()
    hashes = ",".join(sorted(prompt.sha256 for prompt in made.prompts.values()))
    text = f"{CLAIM}|gpt-5|{BANK.version}|K=8|R=2|center=trimmed|trim=0.2|B=5000|templates={hashes}"
    expected = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    assert (made.bootstrap_seed, made.seed_source) == (expected, "derived")
    assert plan(env_seed=7).bootstrap_seed == 7
    both = plan(env_seed=7, seed=42)
    assert (both.bootstrap_seed, both.seed_source) == (42, "config")


def test_twelve_slots_over_eight_templates():
    """The example of the seeds: the first four templates get two slots each."""
    made = plan(K=12, T=8, R=2)
    assert made.seq == (0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7)
    assert made.imbalance_ratio == 2.0
    assert list(made.counts.values()) == [4, 4, 4, 4, 2, 2, 2, 2]
    assert made.N == 24


def test_fewer_slots_than_templates_use_the_first_ones():
    """K < T: one slot each for the first K."""
    made = plan(K=3, T=8)
    assert made.seq == (0, 1, 2)
    assert len(made.prompts) == 3


def test_templates_are_contiguous_after_rotation():
    """The bank's indices, rotated left by the offset, first T of them."""
    made = plan(T=8)
    start = made.rotation_offset
    assert made.tpl_indices == tuple((start + i) % 16 for i in range(8))


def test_all_models_of_a_claim_are_asked_in_the_same_wordings():
    """Two models at the defaults compare wording by wording, so the model turns nothing."""
    other = plan(model=parse_model("mock:claude-sonnet-5-5"))
    assert other.tpl_indices == plan().tpl_indices
    assert len({plan(f"Claim {number}.").rotation_offset for number in range(20)}) > 1


@settings(max_examples=200)
@given(K=st.integers(1, 40), R=st.integers(1, 5), T=st.integers(1, 16), claim=st.text(min_size=1))
def test_a_plan_is_balanced_and_never_asks_for_one_sample_twice(K, R, T, claim):
    """K×R attempts, counts within R of each other, all cache keys distinct."""
    try:
        made = plan(claim, K=K, R=R, T=T)
    except UnicodeEncodeError:
        return  # half a surrogate pair: claims with one are refused before they get here
    assert len({sample.cache_key for sample in made.samples}) == made.N == K * R
    assert sum(made.counts.values()) == K * R
    assert max(made.counts.values()) - min(made.counts.values()) <= R
    for index, count in made.counts.items():
        replicates = [s.replicate_idx for s in made.samples if s.paraphrase_idx == index]
        assert sorted(replicates) == list(range(count))


def test_what_changes_a_recipe_and_what_does_not():
    """run_id ignores T, B, seed and the token limit; samples keep their keys where they can."""
    base = plan()
    for same in (plan(T=4), plan(B=700), plan(seed=1), plan(max_output_tokens=99)):
        assert same.run_id == base.run_id
    for other in (plan(K=9), plan(R=3), plan("Other."), plan(model=parse_model("gpt-5-mini"))):
        assert other.run_id != base.run_id
    wider = {sample.cache_key for sample in plan(R=3).samples}
    assert {sample.cache_key for sample in base.samples} < wider
    limited = {sample.cache_key for sample in plan(max_output_tokens=99).samples}
    assert not limited & wider


def test_options_that_are_sent_change_identities_and_others_do_not():
    """Temperature is folded in where it is sent; GPT-5 rejects it, so nothing changes there."""
    mini = parse_model("gpt-4.1-mini")
    assert plan(model=mini, temperature=0.5).run_id != plan(model=mini).run_id
    assert plan(model=mini, temperature=0.5).samples[0] != plan(model=mini).samples[0]
    assert plan(temperature=0.5).run_id == plan().run_id
    assert plan(temperature=0.5).options.temperature is None
    assert plan(reasoning_effort="low").run_id != plan().run_id


def test_a_mock_never_shares_an_identity_with_the_model_it_stands_for():
    """A mock's sample can't be served to a live run."""
    live, mock = plan(), plan(model=GPT5.make_mock())
    assert live.run_id != mock.run_id
    assert not {s.cache_key for s in live.samples} & {s.cache_key for s in mock.samples}
    assert plan(model=parse_model("openai:gpt-5")).run_id == live.run_id


def test_pipes_in_claims_make_no_two_identities_equal():
    """What a claim holds can't be mistaken for another part of the identity."""
    a = plan(f"x|mock:a|{BANK.version}|K=8|R=2", model=parse_model("mock:a"))
    b = plan("x", model=parse_model("mock:a"))
    assert a.run_id != b.run_id


def test_templates_can_be_picked_by_hand():
    """Include and exclude choose before rotation; impossible choices are refused."""
    made = plan(template_include=(3, 1, 5), template_exclude=(5,))
    assert sorted(made.tpl_indices) == [1, 3]
    assert made.T == 2
    for options, said in [
        ({"template_include": (16,)}, "0 to 15"),
        ({"template_include": (2,), "template_exclude": (2,)}, "no template"),
        ({"template_include": (1, 2), "T": 3}, "`T`"),
        ({"T": 17}, "`T`"),
    ]:
        with pytest.raises(ConfigError, match=said):
            plan(**options)


def test_a_request_carries_the_exact_text_that_was_hashed():
    """What is sent is what the identity says."""
    made = plan()
    for sample in made.samples:
        request = made.request(sample)
        assert sha(f"{request.system}\n\n{request.user}") == sample.prompt_sha256
        assert CLAIM in request.user
        assert 0 <= request.seed < 2**31
