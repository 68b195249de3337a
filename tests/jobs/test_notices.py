"""Notices: who would lose a stake is told in time, once, by mail and by webhook."""

import json
import socketserver
import threading
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from episode_town import CLAIM, NOW, Town

from heretix.core.errors import ConfigError
from heretix.core.settings import Settings
from heretix.economy.episode.challenges import evidence_commitment
from heretix.economy.episode.state import Direction
from heretix.jobs.notices import read_contacts
from heretix.jobs.scheduler import EpisodeScheduler


class Mailbox(socketserver.StreamRequestHandler):
    """As much of SMTP as takes a message; the server keeps what comes."""

    def handle(self):
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline().strip():
            if line.upper() == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = []
                while (text := self.rfile.readline()) != b".\r\n":
                    lines.append(text)
                self.server.mails.append(message_from_bytes(b"".join(lines), policy=policy.default))
            self.wfile.write(b"221 bye\r\n" if line.upper() == b"QUIT" else b"250 well\r\n")


class Hook(BaseHTTPRequestHandler):
    """Keeps what is posted, and answers what the server is told to."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.posted.append(json.loads(body))
        self.send_response(self.server.answers)
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def mailbox():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox) as server:
        server.mails = []
        yield from running(server)


@pytest.fixture
def hook():
    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        server.posted, server.answers = [], 200
        yield from running(server)


def running(server):
    """A server, while the test goes on."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()


@pytest.fixture
def settings(tmp_path, mailbox, hook):
    """Settings with a mailbox to send from; Cat has both an address and a webhook, Dan neither."""
    contacts = tmp_path / "contacts.json"
    webhook = f"http://127.0.0.1:{hook.server_address[1]}/secret"
    contacts.write_text(json.dumps({"cat": {"mail": "cat@example.org", "webhook": webhook}}))
    env = {
        "HERETIX_CONTACTS": str(contacts),
        "HERETIX_SMTP": f"smtp://127.0.0.1:{mailbox.server_address[1]}",
        "HERETIX_MAIL_FROM": "heretix@example.org",
    }
    return Settings(env=env)


@pytest.fixture
def town(store, settings):
    """Cat and Dan have sealed evidence each, which nobody has revealed."""
    town = Town(store, settings)
    town.episode = town.opened()
    for name in ("cat", "dan"):
        town.exchange.join(name, "PLAY")
        sealed = evidence_commitment(bytes(32), "0" * 64, Direction.UP, f"user:{name}:PLAY")
        options = {"commitment": sealed, "amount": 90_000, "key": name}
        town.exchange.commit(town.episode.id, name, **options)
    return town


def scheduler_of(town, wall=lambda: NOW / 1000):
    return EpisodeScheduler(town.store, town.settings, clock=town.clock, wall=wall)


def test_whoever_would_lose_a_stake_is_told_when_it_can_be_saved_and_again_at_the_end(
    town, mailbox, hook
):
    """By mail and by webhook, once each, whichever worker comes by; nobody is told who didn't ask."""
    terms = town.episode.terms
    last = terms.freeze_at_ms - (terms.freeze_at_ms - terms.close_until_ms) // 4
    told = []
    for moment in (terms.close_until_ms, terms.close_until_ms + 1, last, last + 1):
        town.clock.hold(moment)
        for scheduler in (scheduler_of(town), scheduler_of(town)):
            scheduler.make_due_moves()
            scheduler.make_due_moves()
        told.append((len(mailbox.mails), len(hook.posted)))
    assert told == [(0, 0), (1, 1), (1, 1), (2, 2)]
    mail = mailbox.mails[0]
    assert (mail["To"], mail["From"]) == ("cat@example.org", "heretix@example.org")
    assert mail["Subject"].startswith("Reveal your evidence by 20")
    for said in (CLAIM, town.episode.id, "heretix episode reveal"):
        assert said in mail.get_content()
    challenge = town.exchange.episode(town.episode.id).challenges[0]
    posted = hook.posted[0]
    assert posted["lost"] == challenge.least
    assert posted["until_ms"] == terms.freeze_at_ms
    assert (posted["episode"], posted["challenge"]) == (town.episode.id, 0)
    assert posted["text"].splitlines() == mail.get_content().splitlines()


def test_what_cannot_be_sent_is_tried_again_five_times_at_most(town, hook, mailbox, caplog):
    """Ten minutes later each time; the address isn't in the log."""
    wall = [NOW / 1000]
    scheduler = scheduler_of(town, wall=lambda: wall[0])
    town.clock.hold(town.episode.terms.close_until_ms + 1)
    hook.answers = 500
    for tries in range(1, 8):
        scheduler.make_due_moves()
        assert len(hook.posted) == min(tries, 5)
        wall[0] += 599
        scheduler.make_due_moves()
        assert len(hook.posted) == min(tries, 5)
        wall[0] += 1
    assert mailbox.mails == []
    assert "couldn't be sent" in caplog.text
    assert "secret" not in caplog.text


def test_what_was_revealed_is_not_told_of(town, hook):
    """Nothing is lost any more."""
    town.clock.hold(town.episode.terms.close_until_ms + 1)
    hidden = {"nonce": bytes(32), "bundle_sha256": "0" * 64, "direction": Direction.UP}
    town.exchange.reveal(town.episode.id, 0, "cat", **hidden)
    scheduler_of(town).make_due_moves()
    assert hook.posted == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "HERETIX_CONTACTS"),
        ('["cat"]', "HERETIX_CONTACTS"),
        ('{"cat": {"phone": "1"}}', "HERETIX_CONTACTS"),
        ('{"cat": {"mail": "cat at home"}}', "`mail` of 'cat'"),
        ('{"cat": {"webhook": "ftp://x"}}', "`webhook` of 'cat'"),
    ],
)
def test_contacts_that_reach_nobody_are_refused(tmp_path, content, said):
    """At the start, and not when it is too late."""
    path = tmp_path / "contacts.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        read_contacts(path)


@pytest.mark.parametrize("missing", ["HERETIX_SMTP", "HERETIX_MAIL_FROM"])
def test_mail_needs_somewhere_to_be_sent_from(town, missing):
    """Said at the start."""
    env = {name: value for name, value in town.settings.env.items() if name != missing}
    with pytest.raises(ConfigError, match=missing):
        EpisodeScheduler(town.store, Settings(env=env), clock=town.clock)
