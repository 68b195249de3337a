"""Every command and snippet of the documents is run, page by page, in order, as it is written.

A page has a folder and a store of its own. What a line would need of the world outside is replaced by
`SUBSTITUTED`; what can't be run at all stands in `NOT_RUN` with its reason; nothing else is left out.
"""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from faultserver import answers

REPOSITORY = Path(__file__).parents[2]
PAGES = [
    page
    for page in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    if "```" in page.read_text()
]
SHELL, SHOWN = {"", "sh", "bash"}, {"text", "yaml", "json", "toml", "markdown"}

SUBSTITUTED = (
    # Heretix is installed, and its environment is the one that runs the tests.
    (r"^python3 -m pip install (-q )?uv *(&& )?", ""),
    (r"^((\w+=\S+ )*)(python3 -m )?uv run (--(group|extra) \w+ )*", r"\1"),
    # Models that cost money, are servers of others or take minutes: a server on loopback has words
    # for claims, and the mock has numbers.
    (r"^(heretix claims .*-m )(gpt-5)\b", r"\1openai-compatible:\2"),
    (r"^(heretix \w.*?-m )(?=gpt-|claude-)", r"\1mock:"),
    (r"( -m )(?=claude-|gemini-|ollama:|local:)", r"\1mock:"),
    (r"--model openai/gpt-5", "--model mockllm/model"),
    (r"^heretix (run|lens)\b(?!.* (-m|--mock|--config)\b)", r"heretix \1 --mock"),
    # The packaged corpus has documents for every lens.
    (r"^(heretix (?:lens|evidence build) .*--corpus )mine\b", r"\1demo"),
    # Two thousand episodes in a command's place take minutes, and a search takes more.
    (r"^heretix simulate\b", "heretix simulate --episodes 20"),
)
NOT_RUN = {
    ". .venv/bin/activate": "a shell of its own per line keeps nothing of it",
    "uv sync": "makes an environment; `.ci/run` begins with it",
    "pytest -n auto": "runs these tests",
    "heretix models pull": "fetches 1.1 GB from the network",
    "heretix serve": "stays up; tests/web/test_serve.py starts it",
    "heretix demo --serve": "stays up; tests/cli/test_demo.py fills the same store",
    "heretix worker": "stays up; tests/cli/test_jobs_commands.py starts it",
    "cp deploy/example.env": "begins what follows",
    "docker compose": "needs Docker; tests/cli/test_deploy.py reads the files",
    "kubectl": "needs a Kubernetes cluster; tests/cluster/test_manifest.py reads the file",
    "ray start": "needs two machines; tests/cluster/test_ray.py starts two nodes here",
    "heretix doctor --on ray": "needs a cluster; tests/cluster/test_ray.py",
    "heretix run --claims-file claims.jsonl -m mock:gpt-5 --on ray": "the same",
    "export RAY_AUTH_MODE": "settings of that cluster",
    "export HERETIX_DB=postgresql": "settings of that cluster",
    "export OPENAI_API_KEY": "settings of that cluster",
    "heretix simulate --episodes 20 --search": "plays for minutes; tests/economy/test_attack_search.py",
    "python bench/real_study.py": "asks a model for hours; tests/studies read its record",
}
ELSEWHERE = {
    "api.md": "tests/web/test_api_docs.py",  # needs a server and a worker
    "plugins.md": "tests/cli/test_plugins.py",  # the files of a package, which is installed there
}
CLAIMS = ("Tea is a plant.", "Water boils at 50 °C.")
ROWS = "".join(json.dumps({"claim": claim}) + "\n" for claim in CLAIMS)
TABLE = "claim,label\n" + "".join(f"{claim},{int(n == 0)}\n" for n, claim in enumerate(CLAIMS))
NOTES = "# Notes\n\nA meter study found that electricity use fell by 2% in spring.\n"
GERMAN = {
    f"deutsch/{number}.md": f"---\ntitle: Tee\nurl: https://www.{host}/tee\n---\n\n{text}\n"
    for number, (host, text) in enumerate(
        {
            "destatis.de": "Tee ist eine Pflanze, von der im Jahr 2020 mehr eingeführt wurde.",
            "rki.de": "Die Pflanze, aus der Tee gewonnen wird, wächst in warmen Ländern.",
            "uni-hohenheim.de": "Tee kommt von einer immergrünen Pflanze mit weißen Blüten.",
        }.items()
    )
}
FILES = {
    "guide.md": {
        "claims.csv": TABLE,
        "claims.txt": "\n".join(CLAIMS),
        "claims.jsonl": ROWS,
        **GERMAN,
    },
    "interop.md": {"claims.csv": TABLE},
    "lenses.md": {
        "notes.md": NOTES,
        "papers/a.md": NOTES.replace("Notes", "A paper"),
        "notes.jsonl": json.dumps({"text": NOTES, "title": "Kept"}) + "\n",
        "urls.txt": "# none yet\n",
    },
}
FIRST = {
    "guide.md": ["heretix corpus add deutsch --corpus deutsch"],
    "interop.md": ["heretix run --claims-file claims.csv --mock"],
    "lake.md": ["heretix run Tea. --mock"],
    "lenses.md": ["heretix corpus add notes.md --corpus mine"],
    "reports.md": [
        "heretix run --config runs/rpl_example.yaml --mock --out runs/example.json",
        "heretix run Tea. -m mock:a -m mock:b -m mock:c",
        "heretix lens Tea. -m sim:x --lens RPL,NUL --out lens.json",
    ],
    "web.md": ["heretix run Tea. --mock"],
}
"""What a page takes for granted: files, and what was measured before."""
LONG, SLOW = pytest.mark.soak, {"interop.md", "simulation.md"}
"""Another program's start, and whole simulations, take longer than all other pages together."""


def blocks(page):
    """The page's fenced blocks, in order: the language, the file that it names, and the text."""
    found = re.findall(
        r"^( *)```([^\n]*)\n(.*?)^\1```$", page.read_text(), re.MULTILINE | re.DOTALL
    )
    for indent, opening, text in found:
        kind, _, name = opening.partition(" ")
        yield kind, name, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)


def substituted(line):
    """The line as it is run here."""
    for written, run in SUBSTITUTED:
        line = re.sub(written, run, line)
    return line.strip()


def lines(text):
    """The commands of a shell block as they are run, each with the exit code that it announces."""
    for line in re.sub(r" *\\\n *", " ", text).splitlines():
        command = re.split(r"(?:^|\s+)# ", line)[0].removeprefix("$ ")
        announced = re.search(r"# exit (\d+)", line)
        if command := substituted(command):
            yield command, int(announced[1]) if announced else 0


def reason_against(line):
    """The beginning in `NOT_RUN` that the line has; None when it is run."""
    return next((start for start in NOT_RUN if line.startswith(start)), None)


class Desk:
    """Where a page is run."""

    def __init__(self, heretix, shell, monkeypatch):
        self.heretix, self.shell, self.monkeypatch = heretix, shell, monkeypatch
        self.names = {}

    def do(self, line):
        """Run a line, in this process where it is one command; gives its code and what it said."""
        if set_ := re.fullmatch(r"export (\w+)=(\S+)", line):
            self.monkeypatch.setenv(*set_.groups())
            return 0, ""
        if not line.startswith("heretix ") or re.search(
            r"[|<>;&`]|\$\(", re.sub(r"'[^']*'|\"[^\"]*\"", "", line)
        ):
            done = self.shell(line)
            return done.returncode, done.stderr
        # A terminal would ask for the password.
        typed = "pass-phrase-of-tests\n" if line.startswith("heretix users add") else None
        done = self.heretix(*shlex.split(self.named(line))[1:], stdin=typed)
        return done.code, f"{done.out}\n{done.err}"

    def named(self, line):
        """Put the newest runs where the page says `A B C`, `EXECUTION` or a part of an id."""
        if not re.search(r"\b(A B C|EXECUTION|1a2b3c4d)\b", line):
            return line
        listed = json.loads(self.heretix("runs", "--json").out)
        ids = [run["execution_id"] for run in listed]
        line = line.replace("A B C", " ".join(ids[:3]))
        return re.sub(r"\b(EXECUTION|1a2b3c4d)\b", ids[0], line)


@pytest.fixture
def desk(heretix, shell, provider, monkeypatch):
    """A folder, a store, and a server on loopback that has words and numbers."""
    provider.always(answers(_words))
    return Desk(heretix, shell, monkeypatch)


def _words(call):
    return json.dumps({"claims": ["As of 2026, tea is a plant that grows in Assam."]})


def prepare(page, desk, folder):
    """Lay out what the page takes for granted."""
    for name, text in FILES.get(page.name, {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for line in FIRST.get(page.name, []):
        assert desk.do(line)[0] == 0, line


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=LONG if page.name in SLOW else ()) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_every_command_and_snippet_of_a_page_runs(page, desk, folder):
    """Each ends with 0, or with the code that the page says."""
    if page.name in ELSEWHERE:
        assert f'"{page.name}"' in (REPOSITORY / ELSEWHERE[page.name]).read_text()
        return
    if page.name == "interop.md":
        pytest.importorskip("inspect_ai")
    prepare(page, desk, folder)
    for kind, name, text in blocks(page):
        if name:
            (folder / name).write_text(text)
        elif kind == "python":
            exec(compile(text, page.name, "exec"), desk.names)
        elif kind in SHELL:
            for line, code in lines(text):
                if reason_against(line) is None:
                    assert (found := desk.do(line))[0] == code, (line, found)
        else:
            assert kind in SHOWN, (kind, text)


def test_what_is_not_run_is_in_the_documents_and_exists():
    """No entry outlives its line; and each command knows its options."""
    from heretix.cli.app import app

    left = {}
    for page in PAGES:
        for kind, name, text in blocks(page):
            if kind in SHELL and not name:
                for line, _ in lines(text):
                    left.setdefault(reason_against(line), []).append(line)
    assert set(left) - {None} == set(NOT_RUN)
    for line in [line for start in NOT_RUN for line in left[start]]:
        if line.startswith("heretix "):
            asked = CliRunner().invoke(app, [*shlex.split(line)[1:], "--help"])
            assert asked.exit_code == 0, (line, asked.output)
