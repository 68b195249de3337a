"""An episode as people play it in a browser: every move is a form of a page."""

import base64
import html
import re

CLAIM = "Tin whiskers cause <b>short</b> circuits & worse in satellites."
PAPER = "Tin whiskers shorted three satellites in 1998, the review board found in its report."
NOW = 1_700_000_000_000
DAY = 86_400_000
SMALL = {"practice": "1", "B": "300", "R": "1"}


class Play:
    """An episode as people play it: every move is a form of a page."""

    def __init__(self, town, **options):
        self.town, self.clock = town, town.state.clock
        self.exchange = town.state.exchange
        self.root = town.signed_in("root")
        self.alice = town.signed_in("alice")
        self.bob = town.signed_in("bob")
        fields = {**SMALL, "claim": CLAIM, "key": "open-it-once", **options}
        self.id = self.worked("/episodes/new", fields).rpartition("/")[2]
        self.path = f"/episodes/{self.id}"

    @property
    def episode(self):
        return self.exchange.episode(self.id)

    def worked(self, path, fields):
        """Send an operator's form, wait for the measurement, and say where it leads."""
        sent = self.root.post(path, fields)
        assert sent.status_code == 303, sent.text
        self.town.work()
        return self.looked_at(sent)

    def looked_at(self, sent):
        """Where the page of a job that is done leads."""
        page = self.root.get(sent.headers["location"])
        assert '<h2 id="state" data-state>Done</h2>' in page.text
        (found,) = re.findall(
            r'<a class="button" href="([^"]+)">Look at the episode</a>', page.text
        )
        return found

    def join(self, *sites):
        for site in sites:
            assert site.post("/profile/join").status_code == 303

    def bet(self, site, side, amount):
        quote = site.get(f"{self.path}/quote", params={"side": side, "amount": amount})
        assert quote.status_code == 200, quote.text
        return site.post(f"{self.path}/stake", hidden(quote.text))

    def seal(self, site, **fields):
        data = {"direction": "up", "doc_title": "Report", "doc_text": PAPER, **fields}
        return site.post(f"{self.path}/challenge", data)

    def commit(self, site, **fields):
        """Seal, save the file, commit: what is in the file."""
        sealed = self.seal(site, **fields)
        assert sealed.status_code == 200, sealed.text
        assert sealed.headers["cache-control"] == "no-store"
        taken = site.post(f"{self.path}/commit", hidden(sealed.text) | {"saved": "1"})
        assert taken.status_code == 303, taken.text
        return reveal_file(sealed.text)

    def reveal(self, site, text):
        """Show it, once no bet is taken any more."""
        self.clock.hold(max(self.clock.now_ms(), self.episode.terms.close_until_ms + 1))
        files = {"file": ("reveal.json", text.encode(), "application/json")}
        return site.post(f"{self.path}/reveal", files=files)

    def move(self, name, **fields):
        answer = self.root.post(f"{self.path}/{name}", fields)
        assert answer.status_code == 303, answer.text

    def to_frozen(self, *, evidence=True):
        """Two bets, a piece of evidence, and the freeze."""
        self.join(self.alice, self.bob)
        self.bet(self.alice, "heretic", "25")
        self.bet(self.bob, "orthodox", "40.50")
        if evidence:
            self.reveal(self.alice, self.commit(self.alice, stake="900"))
        self.clock.hold(self.episode.terms.freeze_at_ms)
        self.move("freeze")

    def to_measured(self):
        self.to_frozen()
        self.worked(f"{self.path}/judge", {"key": "judge-them"})
        self.worked(f"{self.path}/measure", {"key": "measure-first"})
        self.clock.advance(7 * DAY)
        self.worked(f"{self.path}/measure", {"key": "measure-second"})


def hidden(text):
    """The hidden fields of the form with a key: what a browser would send."""
    form = next(part for part in text.split("<form")[1:] if 'name="key"' in part)
    form = form.partition("</form>")[0]
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form)
    return {name: html.unescape(value) for name, value in found if name != "csrf"}


def reveal_file(text):
    (found,) = re.findall(r'href="data:application/json;base64,([^"]+)"', text)
    return base64.b64decode(html.unescape(found)).decode()
