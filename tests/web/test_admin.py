"""Running the place from the browser: accounts and limits, who may use what, what is set up."""

import re
from dataclasses import replace

import pytest

from heretix.accounts import LOCAL, Quotas, Role
from heretix.accounts.person import FRESH_EXPLORER
from heretix.core.clock import utc_now
from heretix.core.errors import ConfigError, QuotaError, SignInError
from heretix.core.settings import Settings
from heretix.evidence.demo import demo_documents
from heretix.evidence.sources.corpus import Corpus, corpus_path
from heretix.jobs import Jobs, MeasureRequest
from heretix.store.budgets import STORE_BUDGET, select_budget
from heretix.store.jobs import claim_job
from heretix.web.forms import MeasureForm, describe_models


def test_only_operators_run_the_place(accounts_site):
    """Readers and explorers don't see the page, nor change anybody."""
    for name, status in (("rita", 403), ("alice", 403), ("root", 200)):
        assert accounts_site.signed_in(name).get("/admin").status_code == status
    answer = accounts_site.signed_in("alice").post("/admin/people/alice", {"role": "operator"})
    assert answer.status_code == 403


def test_an_operator_makes_and_changes_accounts(accounts_site):
    """Role and limits at once; what was done stands in the log on the same page."""
    root, people = accounts_site.signed_in("root"), accounts_site.state.people
    form = {"name": "nina", "role": "explorer", "password": "a long enough one"}
    assert root.post("/admin/people", form, form="/admin").status_code == 303
    assert people.find("nina").quotas == FRESH_EXPLORER
    change = {"role": "reader", "jobs_per_day": "7", "usd_per_day": "0.5", "active": "1"}
    assert root.post("/admin/people/nina", change, form="/admin").status_code == 303
    found = people.find("nina")
    assert (found.role, found.active) == (Role.READER, True)
    assert found.quotas == Quotas(jobs_per_day=7, usd_micros_per_day=500_000)
    assert root.post("/admin/people/nina", {"role": " Reader"}, form="/admin").status_code == 303
    assert not people.find("nina").active
    text = root.get("/admin").text
    for what in ("person.add", "person.role", "person.quotas", "person.disable"):
        assert what in text


@pytest.mark.parametrize(
    ("path", "form", "said"),
    [
        ("/admin/people", {"name": "x", "password": "short"}, "password"),
        ("/admin/people", {"name": "x", "role": "king"}, "must be one of reader"),
        ("/admin/people/nobody", {"role": "reader"}, "names nobody"),
        ("/admin/people/alice", {"jobs_per_day": "many"}, "must be a number or empty"),
        ("/admin/people/root", {"role": "operator"}, "disable itself"),
    ],
)
def test_a_mistake_is_said_on_the_page(accounts_site, path, form, said):
    """And nothing is changed."""
    before = accounts_site.state.people.list()
    answer = accounts_site.signed_in("root").post(path, form, form="/admin")
    assert said in answer.text
    assert 'role="alert"' in answer.text
    assert accounts_site.state.people.list() == before


def test_an_operator_sees_and_ends_everybodys_tokens(accounts_site):
    """Valid ones of all people, by whose they are; a revoked one is gone and is in the log."""
    people, root = accounts_site.state.people, accounts_site.signed_in("root")
    issued = people.tokens.issue(people.find("alice"), label="her notebook")
    text = root.get("/admin").text
    assert "her notebook" in text
    path = f"/admin/tokens/{issued.token.id}/revoke"
    assert accounts_site.signed_in("alice").post(path, {}).status_code == 403
    assert root.post(path, {}, form="/admin").status_code == 303
    with pytest.raises(SignInError):
        people.tokens.verify(issued.secret)
    text = root.get("/admin").text
    assert "her notebook" not in text
    assert "token.revoke" in text


def test_an_operator_caps_what_everything_may_cost(site):
    """A budget of the store: set, lowered, and taken away; nonsense is refused on the page."""
    store = site.store
    assert "Nothing limits what all measurements" in site.get("/admin").text
    for usd, cap in (("12.5", 12_500_000), ("3", 3_000_000)):
        assert site.post("/admin/budget", {"usd": usd}, form="/admin").status_code == 303
        assert store.read(select_budget, STORE_BUDGET).cap_micros == cap
    text = site.get("/admin").text
    assert "may cost $3" in text
    assert "budget.set" in text
    for usd in ("much", "-1", "0", "inf", "nan", "1e30"):
        answer = site.post("/admin/budget", {"usd": usd}, form="/admin")
        assert 'role="alert"' in answer.text, usd
    assert store.read(select_budget, STORE_BUDGET).cap_micros == 3_000_000
    assert site.post("/admin/budget", {"usd": ""}, form="/admin").status_code == 303
    assert store.read(select_budget, STORE_BUDGET) is None


def test_the_environment_has_the_last_word_on_the_budget(site):
    """Where a variable sets it, the page says so and changes nothing."""
    settings = replace(site.state.settings, env={"HERETIX_BUDGET_USD": "5"})
    site.state.settings = settings
    assert "HERETIX_BUDGET_USD" in site.get("/admin").text
    answer = site.post("/admin/budget", {"usd": "9"}, form="/measure")
    assert "change it there" in answer.text
    assert site.store.read(select_budget, STORE_BUDGET) is None


def test_the_place_tells_who_works_and_what_is_there(site, tmp_path):
    """Workers with what they have under way, corpora with their documents, jobs of the log."""
    job = site.state.jobs.submit(LOCAL, MeasureRequest.parse({"claims": ["Tea is a drink."]}))
    site.store.write(claim_job, "elsewhere/1/2", lease_s=600.0, stamp=utc_now(), ours=())
    folder = tmp_path / "more"
    folder.mkdir()
    with Corpus.open(corpus_path(folder, "gazette")) as corpus:
        corpus.add(list(demo_documents())[:1])
    (folder / "broken.sqlite").write_bytes(b"no database")
    site.state.settings = replace(site.state.settings, env={"HERETIX_CORPORA_DIR": str(folder)})
    text = site.get("/admin").text
    assert "<code>elsewhere/1/2</code> works on 1" in text
    assert "gazette (1 document)" in text
    assert f'<td class="small"><a href="/jobs/{job.id}">' in text


def test_the_first_account_is_an_operator(site):
    """Otherwise making it would shut everybody out of running the place."""
    for form in (
        {"name": "ada", "role": "explorer", "password": "a long enough one"},
        {"name": "ada", "role": "operator"},
    ):
        answer = site.post("/admin/people", form, form="/admin")
        assert "first account must be operator" in answer.text
        assert site.state.people.count() == 0


def test_a_fresh_explorer_has_daily_limits(site):
    """Whoever becomes one, too; others have none, and what was given stays."""
    people = site.state.people
    assert people.add("eve", role=Role.EXPLORER).quotas == FRESH_EXPLORER
    assert people.add("rob").quotas == Quotas()
    assert people.set_role("rob", Role.EXPLORER).quotas == FRESH_EXPLORER
    given = Quotas(jobs_per_day=1)
    assert people.add("max", role=Role.EXPLORER, quotas=given).quotas == given
    people.set_role("max", Role.READER)
    assert people.set_role("max", Role.EXPLORER).quotas == given


def test_the_operator_says_which_providers_explorers_may_use(site):
    """Named in the environment; operators may use all."""
    settings = Settings.from_env({"HERETIX_EXPLORER_PROVIDERS": "mock, sim", "HERETIX_DB": "x"})
    assert settings.explorer_providers == ("mock", "sim")
    jobs = Jobs(site.store, replace(settings, db=site.state.settings.db), check_keys=False)
    eve = site.state.people.add("eve", role=Role.EXPLORER, quotas=Quotas())
    allowed = MeasureRequest.parse({"claims": ["Tea is a drink."], "models": ["mock:m"]})
    refused = MeasureRequest.parse({"claims": ["Tea is a drink."], "models": ["openai:gpt-5"]})
    assert jobs.submit(eve, allowed).state.value == "queued"
    with pytest.raises(QuotaError, match="isn't for explorers here"):
        jobs.submit(eve, refused)
    assert jobs.submit(LOCAL, refused).state.value == "queued"


def test_a_job_knows_its_place_in_the_queue(site):
    """How many wait longer, and what follows for the page."""
    request = {"claims": ["Tea is a drink."], "models": ["mock:m"], "B": 200}
    ids = [
        site.state.jobs.submit(LOCAL, MeasureRequest.parse({**request, "K": 8 + n})).id
        for n in range(3)
    ]
    places = [site.state.jobs.find_queue_place(site.state.jobs.get(one, by=LOCAL)) for one in ids]
    assert places[0] == 1
    assert places == sorted(places)
    assert "It is next" in site.get(f"/jobs/{ids[0]}").text


def test_a_finished_job_says_what_it_found(site):
    """The finding is its title, and leads to the claim."""
    request = {"claims": ["Tea is a drink."], "models": ["mock:m"], "B": 200}
    job = site.state.jobs.submit(LOCAL, MeasureRequest.parse(request))
    assert site.work() == 1
    text = site.get(f"/jobs/{job.id}").text
    assert '<h1 class="finding"><a href="/runs/exec-' in text
    said = re.sub(r"</?span[^>]*>", "", text)
    assert "Made-up answers, nobody&#39;s belief: m " in said
    assert '<p class="claim">Tea is a drink.</p>' in text
    assert '<svg class="fig' in text  # its picture stands with it


class _Sent(dict):
    """Fields of a form, as the framework gives them."""

    def getlist(self, name):
        return self.get(name, [])


class _File:
    def __init__(self, name, content):
        import io

        self.filename, self.file = name, io.BytesIO(content)


@pytest.mark.parametrize(
    ("name", "content", "claims"),
    [
        ("c.csv", b'id,Claim\n1,"Tea, hot, is a drink."\n2,Bats are blind.\n3,\n', 2),
        ("c.csv", "\ufeffclaim\nÜber ist ein Wort.\n".encode(), 1),
        ("c.txt", b"Tea is a drink.\n\nBats are blind.\n", 2),
        ("c.tsv", b"id\tclaim\n1\tTea is a drink.\n", 1),
        ("c.jsonl", b'{"claim": "Tea is a drink."}\n{"claim": "Bats are\\nblind."}\n', 2),
        ("c.json", b'["Tea is a drink.", {"claim": "Bats are blind."}]', 2),
    ],
)
def test_claims_come_from_a_file(name, content, claims):
    """In the format of its ending, else one a line; after what was typed."""
    form = MeasureForm.from_data(
        _Sent(claims="Typed.", file=_File(name, content), model=["mock:m"])
    )
    lines = form.claims.splitlines()
    assert len(lines) == claims + 1
    assert lines[0] == "Typed."
    assert not set("{[\t") & set(form.claims)
    assert form.models == "mock:m"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"text\nx\n", "a column `claim`"),
        (b"claim;id\nx, y;1\n", "parted by another character"),
        (b"claim,claim\nx,y\n", "`claim` stands twice"),
        (b"claim\n\xff\n", "UTF-8"),
        (b"a" * 1_000_001, "at most"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(site, content, said):
    """With what to do, and before anything is planned."""
    with pytest.raises(ConfigError, match=said):
        MeasureForm.from_data(_Sent(file=_File("c.csv", content)))
    answer = site.client.post(
        "/measure",
        data={"csrf": site.csrf()},
        files={"file": ("c.csv", content)},
        headers={"origin": site.url},
    )
    assert answer.status_code == 422


def test_models_are_described_with_price_and_key(site):
    """What costs nothing says so; what lacks its key can't be ticked, and names the variable."""
    cards = {card.name: card for card in describe_models(site.state.settings, site.store)}
    assert cards["mock:gpt-5"].price == "free"
    assert cards["mock:gpt-5"].ready
    gpt = cards["gpt-5"]
    assert (gpt.ready, gpt.key) == (False, "OPENAI_API_KEY")
    assert "a million tokens" in gpt.price
    text = site.get("/measure").text
    assert "OPENAI_API_KEY isn't set here" in text.replace("&#39;", "'")
