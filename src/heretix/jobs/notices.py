"""Notices: people are told of a moment at which they would lose a stake, before it comes.

Who has sealed evidence loses the least stake unless it is revealed in time. A notice goes out when
evidence can be revealed, and another when a quarter of that time is left; by mail, to a webhook, or
both, as the file of contacts says. The page of the episode says it to its owner in any case.

A notice is noted in the audit log before it is sent, so that of many workers one sends it; one that
couldn't be sent is noted as well, and is tried again.
"""

from __future__ import annotations

import json
import logging
import math
import re
import smtplib
import urllib.request
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from heretix.accounts import LOCAL
from heretix.accounts.audit import note
from heretix.core.clock import utc_text_of_ms
from heretix.core.errors import ConfigError
from heretix.economy.episode.state import Fate, State
from heretix.economy.ledger import CURRENCIES, format_amount
from heretix.store import accounts as people
from heretix.store import jobs as rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlalchemy import Connection

    from heretix.core.settings import Settings
    from heretix.economy.episode.state import Challenge, Episode
    from heretix.store import Store

_TRIES: Final = 5
_TIMEOUT_S: Final = 20.0
_AGAIN_S: Final = 600.0
_MAIL: Final = re.compile(r"[^@\s]+@[^@\s]+")
_WEBHOOK: Final = re.compile(r"https?://\S+")
_SENT, _UNSENT = "notice.reveal", "notice.unsent"
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Contact:
    """Addresses at which one person wants to be told."""

    mail: str | None = None
    webhook: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing to tell one person: a stake that is lost unless they act in time."""

    person: str
    subject: str
    """Its name in the log: the episode, the challenge, and which time."""
    text: str
    data: Mapping[str, Any]


def read_contacts(path: Path) -> dict[str, Contact]:
    """Read who is told where: {"ada": {"mail": "ada@example.org", "webhook": "https://…"}}."""
    try:
        found = json.loads(path.read_text())
        contacts = {name: Contact(**where) for name, where in found.items()}
    except (OSError, ValueError, TypeError, AttributeError) as exc:
        raise ConfigError(
            "`HERETIX_CONTACTS` must name a JSON file of names, each with a `mail` or a `webhook` "
            f"or both ({type(exc).__name__})"
        ) from exc
    for name, contact in contacts.items():
        for kind, pattern in (("mail", _MAIL), ("webhook", _WEBHOOK)):
            given = getattr(contact, kind)
            if given is not None and not pattern.fullmatch(str(given)):
                raise ConfigError(
                    f"`{kind}` of {name!r} in the contacts must be the address of a {kind}"
                )
    return contacts


def find_notices(episode: Episode, now_ms: int) -> Iterator[Notice]:
    """Find what is to be told now: nothing before evidence can be revealed, nothing afterwards."""
    terms = episode.terms
    opened, until = terms.close_until_ms, terms.freeze_at_ms
    if episode.state is not State.CHALLENGE or not opened < now_ms <= until:
        return
    time = "last" if now_ms > until - (until - opened) // 4 else "first"
    for challenge in episode.challenges:
        if challenge.fate is Fate.COMMITTED:
            yield _make_notice(episode, challenge, time)


def _make_notice(episode: Episode, challenge: Challenge, time: str) -> Notice:
    terms, lost = episode.terms, min(challenge.least, challenge.stake)
    money = f"{format_amount(lost, CURRENCIES[terms.currency])}"
    by = utc_text_of_ms(terms.freeze_at_ms)
    return Notice(
        person=challenge.account.partition(":")[2].rpartition(":")[0],
        subject=f"{episode.id}#{challenge.number} {time}",
        text=(
            f"Reveal your evidence by {by}, or {money} of your stake is lost.\n\n"
            f"Claim: {terms.claim}\nEpisode: {episode.id}\nChallenge: {challenge.number}\n\n"
            "heretix episode reveal reveal.json\n"
        ),
        data={
            "kind": "reveal",
            "episode": episode.id,
            "claim": terms.claim,
            "challenge": challenge.number,
            "until_ms": terms.freeze_at_ms,
            "lost": lost,
            "currency": terms.currency,
        },
    )


class Notifier:
    """Sends what people are to be told, each notice once."""

    def __init__(self, store: Store, settings: Settings, *, wall: Callable[[], float]) -> None:
        self._store, self._wall, self._env = store, wall, settings.env
        path = settings.env.get("HERETIX_CONTACTS")
        self._contacts = read_contacts(Path(path)) if path else {}
        self._not_before: dict[str, float] = {}
        """By notice: when it may be tried again."""
        if any(contact.mail for contact in self._contacts.values()):
            self._mailbox()

    @property
    def active(self) -> bool:
        """Tell whether anybody wants to be told anything."""
        return bool(self._contacts)

    def tell(self, episode: Episode, now_ms: int) -> int:
        """Send what is to be told about an episode now; how many notices."""
        told = 0
        for notice in find_notices(episode, now_ms):
            contact = self._contacts.get(notice.person)
            if contact is None or self._wall() < self._not_before.get(notice.subject, -math.inf):
                continue
            self._not_before[notice.subject] = math.inf
            if not self._store.write(self._claim, episode.id, notice):
                continue
            try:
                self._send(notice, contact)
                told += 1
            except (OSError, smtplib.SMTPException) as exc:
                # Addresses are nobody's business who reads a log.
                _log.warning("notice %s couldn't be sent: %s", notice.subject, type(exc).__name__)
                failed, now = notice.subject, self._wall()
                self._store.write(note, now, _UNSENT, by=LOCAL, subject=failed)
                self._not_before[failed] = now + _AGAIN_S
        return told

    def _claim(self, connection: Connection, episode_id: str, notice: Notice) -> bool:
        """Note a notice, unless it was sent before or was tried too often."""
        rows.lock_episode(connection, episode_id)
        sent = people.count_audit_entries(connection, _SENT, notice.subject)
        unsent = people.count_audit_entries(connection, _UNSENT, notice.subject)
        if sent > unsent or unsent >= _TRIES:
            return False
        note(connection, self._wall(), _SENT, by=LOCAL, subject=notice.subject)
        return True

    def _send(self, notice: Notice, contact: Contact) -> None:
        if contact.webhook is not None:
            body = json.dumps({"text": notice.text, **notice.data}).encode()
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(contact.webhook, body, headers)  # noqa: S310
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
                pass
        if contact.mail is not None:
            self._mail(notice, contact.mail)

    def _mail(self, notice: Notice, to: str) -> None:
        scheme, host, port, user, password = self._mailbox()
        message = EmailMessage()
        message["Subject"] = notice.text.partition("\n")[0]
        message["From"], message["To"] = self._env["HERETIX_MAIL_FROM"], to
        message.set_content(notice.text)
        connect = smtplib.SMTP_SSL if scheme == "smtps" else smtplib.SMTP
        with connect(host, port, timeout=_TIMEOUT_S) as server:
            if user and scheme == "smtp":
                # A password never goes out in the clear.
                server.starttls()
            if user:
                server.login(user, password)
            server.send_message(message)

    def _mailbox(self) -> tuple[str, str, int, str, str]:
        """Account that mail is sent from, as the settings say it."""
        given = urlsplit(self._env.get("HERETIX_SMTP", ""))
        if given.scheme not in {"smtp", "smtps"} or not given.hostname:
            raise ConfigError(
                "`HERETIX_SMTP` must say where mail is sent, as smtp://user:password@host:587 or "
                "smtps://…, since the contacts name mail addresses"
            )
        if not self._env.get("HERETIX_MAIL_FROM"):
            raise ConfigError("`HERETIX_MAIL_FROM` must be the address that notices come from")
        port = given.port or (465 if given.scheme == "smtps" else 587)
        user, password = unquote(given.username or ""), unquote(given.password or "")
        return given.scheme, given.hostname, port, user, password
