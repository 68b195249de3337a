"""`heretix users`: accounts, roles, quotas, tokens and the audit log of a store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from heretix.cli import options as opt
from heretix.cli import output

if TYPE_CHECKING:
    from heretix.accounts import People, Person, Quotas, Token

app = typer.Typer(
    help="Accounts of the web app: who may do what, and who did what.", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(help="The person's name.", metavar="NAME")]
RoleArgument = Annotated[
    str, typer.Argument(help="reader (look), explorer (measure) or operator.", metavar="ROLE")
]
RoleOption = Annotated[
    str | None, typer.Option("--role", help="reader (look), explorer (measure) or operator.")
]
_NO_ACCOUNT: Final = (
    "nobody has an account here yet; make one with `heretix users add NAME --role operator` first"
)


@app.command("add")
def add(
    name: NameArgument,
    role: RoleOption = "reader",
    no_password: Annotated[
        bool, typer.Option("--no-password", help="For programs: tokens only, no signing in.")
    ] = False,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Make an account. The password is asked for, or read from a line of standard input."""
    from heretix.accounts import Role, check_name

    # Said before anybody has typed a password.
    check_name(name)
    wanted = Role.parse(role or "reader")
    password = None if no_password else _password()
    with _people(db, create=True) as people:
        _show(people.add(name, role=wanted, password=password), as_json=as_json)


@app.command("list")
def list_people(db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """List the accounts."""
    from heretix.report.terminal import plain_table

    with _people(db) as people:
        found = people.list(limit=10_000)
    columns = ("~name", "~role", "~state", "~jobs a day", "~at a time", "~USD a day", "~since")
    rows = [
        (
            person.name,
            person.role.value,
            "" if person.active else "disabled",
            *(limit for _, limit in _limits(person.quotas)),
            person.created_at[:10],
        )
        for person in found
    ]
    nothing = "no accounts: whoever reaches this machine is its operator"
    table = plain_table(*columns, rows=rows)
    output.show(found, lambda _: table, as_json=as_json, empty=nothing)


@app.command("role")
def set_role(
    name: NameArgument,
    role: RoleArgument,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Let a person do more, or less."""
    from heretix.accounts import Role

    with _people(db) as people:
        _show(people.set_role(name, Role.parse(role)), as_json=as_json)


@app.command("password")
def set_password(name: NameArgument, db: opt.DbOption = None) -> None:
    """Set a person's password and sign them out everywhere."""
    with _people(db) as people:
        person = people.find(name)
        people.set_password(person.name, _password())
    typer.echo(f"{person.name} has a new password")


@app.command("quota")
def set_quotas(
    name: NameArgument,
    jobs_per_day: Annotated[
        str | None, typer.Option("--jobs-per-day", help="A number, or `none` for no limit.")
    ] = None,
    running_jobs: Annotated[
        str | None, typer.Option("--running-jobs", help="Jobs at a time, or `none`.")
    ] = None,
    usd_per_day: Annotated[
        str | None, typer.Option("--usd-per-day", help="Dollars, or `none`.")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Say how much a person may use; what isn't named stays as it is."""
    with _people(db) as people:
        person = people.find(name)
        changes: dict[str, int | None] = {}
        for option, text, column, scale in (
            ("--jobs-per-day", jobs_per_day, "jobs_per_day", None),
            ("--running-jobs", running_jobs, "running_jobs", None),
            ("--usd-per-day", usd_per_day, "usd_micros_per_day", 1e6),
        ):
            if text is not None:
                changes[column] = _read_limit(option, text, scale)
        if changes:
            person = people.set_quotas(name, replace(person.quotas, **changes))
    _show(person, as_json=as_json)
    if not as_json:
        limits = _limits(person.quotas)
        typer.echo("  " + ", ".join(f"{limit or 'any number of'} {what}" for what, limit in limits))


@app.command("disable", short_help="Shut a person out, and stop their jobs.")
def disable(name: NameArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Shut a person out, sessions and tokens included, and stop their jobs."""
    with _people(db) as people:
        _show(people.deactivate(name), as_json=as_json)


@app.command("enable")
def enable(name: NameArgument, db: opt.DbOption = None, as_json: opt.JsonOption = False) -> None:
    """Let a person in again."""
    with _people(db) as people:
        _show(people.activate(name), as_json=as_json)


@app.command("tokens")
def tokens(
    name: NameArgument,
    new: Annotated[
        str | None,
        typer.Option(
            "--new", help="Make a token with this label; it is shown once.", metavar="LABEL"
        ),
    ] = None,
    role: RoleOption = None,
    days: Annotated[
        float | None, typer.Option("--days", help="With --new: valid for so long.", min=0.001)
    ] = None,
    revoke: Annotated[
        str | None, typer.Option("--revoke", help="End the token of this id.", metavar="ID")
    ] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List a person's API tokens, make one, or end one."""
    from heretix.accounts import LOCAL, Role

    with _people(db) as people:
        person = people.find(name)
        if revoke is not None:
            people.tokens.revoke(revoke, by=LOCAL)
        if new is not None:
            issued = people.tokens.issue(
                person,
                label=new,
                role=Role.parse(role) if role is not None else None,
                expires_in_s=None if days is None else days * 86_400.0,
                by=LOCAL,
            )
            if as_json:
                output.print_json({"secret": issued.secret, **asdict(issued.token)})
            else:
                typer.echo(issued.secret)
                output.warn("keep it: it can't be shown again", style="dim")
            return
        found = people.tokens.list(person.id)
    _show_tokens(found, as_json=as_json)


@app.command("audit")
def audit(
    limit: Annotated[int, typer.Option("--limit", "-n", help="Entries.", min=1, max=1000)] = 50,
    before: Annotated[
        int | None, typer.Option("--before", help="Older than the entry of this number.", min=1)
    ] = None,
    who: Annotated[str | None, typer.Option("--who", help="By this person only.")] = None,
    what: Annotated[str | None, typer.Option("--what", help="Only this, as job.submit.")] = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show who did what, the newest first."""
    from heretix.report.terminal import plain_table

    with _people(db) as people:
        entries = people.audit.entries(limit=limit, before=before, who=who, what=what)
    rows = [
        (str(entry.seq), entry.at, entry.who, entry.what, entry.subject or "", entry.address or "")
        for entry in entries
    ]
    table = plain_table("~no.", "~when", "~who", "~what", "~subject", "~from", rows=rows)
    nothing = "nothing like that was done yet"
    output.show(entries, lambda _: table, as_json=as_json, empty=nothing)


@contextmanager
def _people(db: str | None, *, create: bool = False) -> Iterator[People]:
    from heretix.accounts import People

    with opt.open_store(db, create=create, absent=_NO_ACCOUNT) as store:
        yield People(store)


def _password() -> str:
    """From a terminal, hidden and twice; from a pipe, one line. Never from the command line,
    which other programs can read."""
    from heretix.accounts import check_password
    from heretix.core.errors import AccountError

    if sys.stdin.isatty():
        # Checked as soon as it is typed: one that can't be needn't be repeated.
        return str(
            typer.prompt(
                "password",
                hide_input=True,
                confirmation_prompt=True,
                value_proc=check_password,
                err=True,
            )
        )
    line = sys.stdin.readline()
    if not line:
        raise AccountError(
            "`password` is missing: standard input is empty; run it in a terminal, which asks for "
            "one, or give it as a line of standard input"
        )
    return check_password(line.rstrip("\r\n"))


def _read_limit(option: str, text: str, scale: float | None) -> int | None:
    from heretix.core.errors import AccountError

    if text.strip().lower() == "none":
        return None
    try:
        return round(float(text) * scale) if scale else int(text)
    except (ValueError, OverflowError) as exc:
        raise AccountError(f"`{option}` must be a number or `none`, got {text!r}") from exc


def _show(person: Person, *, as_json: bool) -> None:
    if as_json:
        output.print_json(person)
    else:
        state = "" if person.active else ", disabled"
        typer.echo(f"{person.name}: {person.role.value}{state}")


def _limits(quotas: Quotas) -> list[tuple[str, str]]:
    """List what a person may use, with nothing where there is no limit."""
    jobs, running, micros = quotas.jobs_per_day, quotas.running_jobs, quotas.usd_micros_per_day
    return [
        ("jobs a day", "" if jobs is None else f"{jobs:,}"),
        ("jobs at a time", "" if running is None else f"{running:,}"),
        ("USD a day", "" if micros is None else f"{micros / 1e6:,.2f}"),
    ]


def _show_tokens(found: list[Token], *, as_json: bool) -> None:
    import time
    from datetime import UTC, datetime

    from heretix.report.terminal import plain_table

    def day(seconds: float | None) -> str:
        return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).date().isoformat()

    now = time.time()
    rows = [
        (
            token.id,
            token.label,
            token.role.value,
            token.created_at[:10],
            day(token.expires_at),
            day(token.last_used_at),
            "revoked" if token.revoked_at else "expired" if token.has_expired(now) else "",
        )
        for token in found
    ]
    columns = ("~id", "~label", "~role", "~made", "~ends", "~last used", "~state")
    table = plain_table(*columns, rows=rows)
    output.show(found, lambda _: table, as_json=as_json)
