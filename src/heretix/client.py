"""A client of a Heretix server: what `/api/v1` offers, as methods with types."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import math
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from pydantic import ValidationError

from heretix.core import errors
from heretix.core.validation import explain, make_adapter
from heretix.economy.episode.state import Challenge, Direction, Dispute, Episode, Ground
from heretix.economy.exchange import EpisodeSummary
from heretix.economy.exploration_service import Standing
from heretix.economy.market import Position, Side
from heretix.measurement.record import RunRecord, SampleRecord, read_sample
from heretix.report.export import format_of, write_export
from heretix.store.runs import RunSummary
from heretix.version import VERSION

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")
PREFIX: Final = "/api/v1"
PROBLEM: Final = "urn:heretix:problem:"
_LONGEST_PAUSE_S: Final = 30.0
_WAIT_S: Final = 3_600.0
"""Longer than the measurement of an episode takes; who knows better says so."""
_BY_STATUS: Final[Mapping[int, type[errors.HeretixError]]] = {
    401: errors.SignInError,
    403: errors.AccessError,
    404: errors.RecordError,
    409: errors.ConflictError,
    501: errors.MissingPartError,
}


class _Transport:
    """One server, a connection for each request. Proxies of the environment aren't asked."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8765",
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        tries: int = 4,
        pause_s: float = 0.5,
    ) -> None:
        """`token` is needed where the server has accounts; it stays out of every message."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise errors.ConfigError(f"`url` must be like http://127.0.0.1:8765, got {url!r}")
        if token is not None and (not token.isascii() or not token.isprintable()):
            raise errors.ConfigError("`token` must be the text that was shown when it was made")
        if tries < 1:
            raise errors.ConfigError(f"`tries` must be at least 1, got {tries}")
        self._url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._root = parts.path.rstrip("/") + PREFIX
        self._headers = {"Accept": "application/json", "User-Agent": f"heretix/{VERSION}"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s, self._tries, self._pause_s = timeout_s, tries, pause_s

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> bytes:
        """Send a request, again when the connection breaks or the server is busy.

        Reads can be sent again as they are, and writes because they have a key.
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        content = None
        if body is not None:
            content = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        for attempt in range(1, self._tries + 1):
            last = attempt == self._tries
            try:
                with self._request(method, path, query, content, headers) as (response, _):
                    answer = response.read()
            except (errors.CallTimeoutError, errors.ConnectionFailedError):
                if last:
                    raise
                self._back_off(attempt, None)
                continue
            if response.status < 400:
                return answer
            # After a try whose answer was lost, the first one may still be under way.
            unfinished = response.status == 409 and key is not None and attempt > 1
            if last or not (response.status in {429, 503} or unfinished):
                raise _problem(response, answer)
            self._back_off(attempt, response.getheader("retry-after"))
        raise AssertionError("the last try returns or raises")

    def _read_pieces(self, path: str, query: Mapping[str, Any]) -> Iterator[bytes]:
        with self._request("GET", path, query) as (response, _), self._reading(response):
            while piece := response.read(64 * 1024):
                yield piece

    def _read_events(
        self, path: str, *, after: int, wait_s: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of a stream until the last one; where it breaks, take it up again.

        After `wait_s` seconds it is over, too.
        """
        until = math.inf if wait_s is None else time.monotonic() + wait_s
        failures = 0
        while time.monotonic() < until:
            retry_after_s: float | None = None
            try:
                for event in self._stream(path, after, until):
                    failures, after = 0, int(event["seq"])
                    yield event
                    if event["ended"]:
                        return
                # It ended by itself: because nothing will come, or because the server stopped.
                with self._request("GET", path, headers=_resume_at(after)) as (response, _):
                    if response.status == 204:
                        return
            except (
                errors.CallTimeoutError,
                errors.ConnectionFailedError,
                errors.TooManyRequestsError,
            ) as exc:
                if time.monotonic() >= until:
                    return
                failures += 1
                if failures >= self._tries:
                    raise
                retry_after_s = getattr(exc, "retry_after_s", None)
            self._back_off(
                max(1, failures), None if retry_after_s is None else f"{retry_after_s:.0f}"
            )

    def _stream(self, path: str, after: int, until: float) -> Iterator[dict[str, Any]]:
        opened = self._request("GET", path, headers=_resume_at(after))
        with opened as (response, sock), self._reading(response):
            while True:
                sock.settimeout(max(0.001, min(self._timeout_s, until - time.monotonic())))
                line = response.readline()
                if not line:
                    return
                if line.startswith(b"data:"):
                    yield json.loads(line.removeprefix(b"data:"))

    @contextlib.contextmanager
    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[http.client.HTTPResponse, socket.socket]]:
        """Send a request once; the socket is for whoever waits for less than `timeout_s`."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_s)
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = self._root + path + (f"?{urlencode(given)}" if given else "")
        try:
            connection.connect()
            sock = connection.sock
            sent = {**self._headers, **(headers or {})}
            connection.request(method, target, body=content, headers=sent)
            yield connection.getresponse(), sock
        except TimeoutError as exc:
            raise errors.CallTimeoutError(
                f"`{self._url}` didn't answer within {self._timeout_s:g} s"
            ) from exc
        except (OSError, http.client.HTTPException) as exc:
            raise errors.ConnectionFailedError(
                f"`{self._url}` can't be reached: {str(exc) or type(exc).__name__}; is it running? "
                "`heretix serve` starts one"
            ) from exc
        finally:
            connection.close()

    @contextlib.contextmanager
    def _reading(self, response: http.client.HTTPResponse) -> Iterator[None]:
        """Read a body piece by piece: a refusal is raised, and so is a break in the middle."""
        if response.status >= 400:
            raise _problem(response, response.read())
        try:
            yield
        except TimeoutError as exc:
            raise errors.CallTimeoutError(f"`{self._url}` fell silent") from exc
        except (OSError, http.client.HTTPException) as exc:
            raise errors.ConnectionFailedError(f"`{self._url}` broke off: {exc}") from exc

    def _back_off(self, attempt: int, retry_after: str | None) -> None:
        wanted = float(retry_after) if retry_after and retry_after.isdigit() else 0.0
        time.sleep(min(_LONGEST_PAUSE_S, max(wanted, self._pause_s * 2 ** (attempt - 1))))


def _resume_at(seq: int) -> dict[str, str]:
    return {"Accept": "text/event-stream", "Last-Event-ID": str(seq)}


def _problem(response: http.client.HTTPResponse, body: bytes) -> errors.HeretixError:
    try:
        problem = json.loads(body)
        problem["detail"]
    except (ValueError, KeyError, TypeError):
        problem = {"detail": f"the server answered {response.status} and didn't say why"}
    return error_of(problem, response.status, retry_after=response.getheader("retry-after", "1"))


def error_of(
    problem: Mapping[str, Any], status: int, *, retry_after: str = "1"
) -> errors.HeretixError:
    """Make the error that the content of a problem document stands for."""
    detail, kind = str(problem["detail"]), str(problem.get("type", ""))
    name = f"{kind.removeprefix(PROBLEM)}Error" if kind.startswith(PROBLEM) else ""
    known = getattr(errors, name, None)
    if known is errors.RefusedError:
        return errors.RefusedError(detail, status=str(problem.get("reason", "refused")))
    if known is errors.TooManyRequestsError or (known is None and status == 429):
        wait_s = float(retry_after) if retry_after.isdigit() else 1.0
        return errors.TooManyRequestsError(detail, retry_after_s=wait_s)
    if known is not None:
        error: errors.HeretixError = known(detail)
        return error
    if status >= 500 and status not in _BY_STATUS:
        return errors.ServerError(detail, status=status)
    return _BY_STATUS.get(status, errors.UsageError)(detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A measurement that was asked for, as it was when it was read."""

    id: str
    owner: str
    title: str
    kind: Literal["measure", "episode"]  # claims to be measured, or a move of an episode
    episode: str | None
    """The episode that it moves on; None for claims, and until it is written down."""
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    request: dict[str, Any]
    progress: dict[str, Any]
    """Phase, samples done and in all, runs done and in all, dollars spent, seconds left."""
    revision: int
    error: str | None
    error_kind: str | None
    created_at: str
    finished_at: str | None

    @property
    def ended(self) -> bool:
        """Tell that nobody works on it any more."""
        return self.state in {"done", "failed", "cancelled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """A change of a job."""

    job_id: str
    seq: int
    state: str
    ended: bool
    progress: dict[str, Any]
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The outcome of a server's deriving a record again."""

    execution_id: str
    run_id: str
    ok: bool
    checked: int
    differences: list[dict[str, Any]]
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The shares that a bet would buy now, and what it can come to."""

    side: str
    stake: int
    shares: int
    average_price_ppm: int
    marginal_price_ppm: int
    implied_ppm: int
    floor: int
    floor_after_fee: int
    typical_rate_ppm: int | None
    """Median rate of the latest episodes that a side won; None while there is none."""
    typical_gain: int | None
    worst_case: int


class Client(_Transport):
    """One server, as one person. Threads may share a client.

    Every write has a key and is sent again under the same one when a connection breaks, so that
    nothing is done twice. Refusals come out as the errors that the library itself would raise.
    """

    def __repr__(self) -> str:
        return f"Client({self._url!r})"

    def measure(
        self,
        claims: str | Sequence[str],
        *,
        models: Sequence[str] = (),
        key: str | None = None,
        **options: Any,
    ) -> Job:
        """Submit claims to be measured. Options are a request's: K, R, lenses, budget_usd, …"""
        return _read(Job, self._post("/jobs", _request(claims, models, options), key))

    def plan(
        self, claims: str | Sequence[str], *, models: Sequence[str] = (), **options: Any
    ) -> dict[str, Any]:
        """Estimate calls, tokens, price and time of a request; nothing is started."""
        body = _request(claims, models, options)
        plan: dict[str, Any] = json.loads(self._send("POST", "/plan", body=body))
        return plan

    def job(self, job_id: str) -> Job:
        """Read one job, as it is now."""
        return _read(Job, self._get(f"/jobs/{_part(job_id)}"))

    def jobs(self, *, state: str | None = None) -> Iterator[Job]:
        """List one's own jobs, the newest first."""
        return self._list(Job, "/jobs", state=state)

    def cancel(self, job_id: str, *, key: str | None = None) -> Job:
        """Stop a job; what was answered until then is kept."""
        return _read(Job, self._post(f"/jobs/{_part(job_id)}/cancel", None, key))

    def resume(
        self, job_id: str, *, budget_usd: float | None = None, key: str | None = None
    ) -> Job:
        """Resume a job that failed or was cancelled."""
        body = {"budget_usd": budget_usd}
        return _read(Job, self._post(f"/jobs/{_part(job_id)}/resume", body, key))

    def follow(
        self, job_id: str, *, after: int = 0, wait_s: float | None = None
    ) -> Iterator[JobEvent]:
        """Yield a job's news until it ends; a lost connection is taken up where it broke.

        Who doesn't want to wait for longer than `wait_s` seconds is told how far it was.
        """
        path = f"/jobs/{_part(job_id)}/events"
        for event in self._read_events(path, after=after, wait_s=wait_s):
            yield _read(JobEvent, event)
        if wait_s is not None and not (found := self.job(job_id)).ended:
            done, total = found.progress["done"], found.progress["total"]
            raise errors.CallTimeoutError(
                f"`{job_id}` is {found.state} after {wait_s:g} s, {done:,} of {total:,} samples "
                "done; it goes on: follow it again"
            )

    def wait(self, job_id: str) -> Job:
        """Wait for a job to end."""
        for _ in self.follow(job_id):
            pass
        return self.job(job_id)

    def results(self, job: Job | str) -> list[RunRecord]:
        """Read the records of everything that a job has measured so far."""
        job_id = job.id if isinstance(job, Job) else job
        found = self._pages(f"/jobs/{_part(job_id)}/runs")
        return [self.record(run["execution_id"]) for run in found]

    def runs(
        self,
        search: str | None = None,
        *,
        claim: str | None = None,
        model: str | None = None,
        lens: str | None = None,
    ) -> Iterator[RunSummary]:
        """List runs that fit, the latest first; further pages are fetched as they are needed."""
        return self._list(RunSummary, "/runs", q=search, claim=claim, model=model, lens=lens)

    def record(self, ref: str) -> RunRecord:
        """Read the record of an execution, or of a run's latest one."""
        return RunRecord.model_validate_json(self._send("GET", f"/executions/{_part(ref)}"))

    def samples(self, ref: str) -> Iterator[SampleRecord]:
        """List the samples of an execution, with the raw answers."""
        return map(read_sample, self._pages(f"/executions/{_part(ref)}/samples"))

    def verify(self, ref: str) -> Verification:
        """Ask the server to derive a record again, from itself alone."""
        return _read(Verification, self._get(f"/executions/{_part(ref)}/verify"))

    def compare(self, a: str, b: str) -> dict[str, Any]:
        """Read the difference of two runs, B minus A, with its interval."""
        return self._get("/compare", a=a, b=b)

    def anomalies(self, *, listed: bool = True) -> Iterator[dict[str, Any]]:
        """List claims on which evidence moves a model most, the strongest first."""
        return self._pages("/anomalies", listed="true" if listed else None)

    def bundle(self, bundle_id: str) -> dict[str, Any]:
        """Read a bundle of evidence."""
        return self._get(f"/bundles/{_part(bundle_id)}")

    def me(self) -> dict[str, Any]:
        """Read whom the server takes this client for: name, role, quotas, balance, standing."""
        return self._get("/people/me")

    def episodes(self, *, state: str | None = None) -> Iterator[EpisodeSummary]:
        """List episodes, the newest first."""
        return self._list(EpisodeSummary, "/episodes", state=state)

    def episode(self, episode_id: str) -> Episode:
        """Read an episode, as it stands."""
        return _read(Episode, self._get(f"/episodes/{_part(episode_id)}"))

    def positions(self, episode_id: str) -> list[Position]:
        """List an episode's bets."""
        return list(self._list(Position, f"/episodes/{_part(episode_id)}/positions"))

    def episode_record(self, episode_id: str, *, against: int | None = None) -> dict[str, Any]:
        """Read all that is needed to redo an episode: see `economy.audit.verify_episode`.

        It can be held against the latest heads, and `against` the head of an event.
        """
        return self._get(f"/episodes/{_part(episode_id)}/record", against=against)

    def quote(self, episode_id: str, side: str, amount: int) -> Quote:
        """Ask what a bet would buy now. Amounts are whole minor units."""
        path = f"/episodes/{_part(episode_id)}/quote"
        return _read(Quote, self._get(path, side=Side(side).value, amount=amount))

    def stake(
        self,
        episode_id: str,
        side: str,
        amount: int,
        *,
        min_shares: int = 0,
        key: str | None = None,
    ) -> Position:
        """Bet on a side; refused if it would buy fewer than `min_shares` micro-shares."""
        body = {"side": Side(side).value, "amount": amount, "min_shares": min_shares}
        return _read(Position, self._post(f"/episodes/{_part(episode_id)}/stakes", body, key))

    def challenge(
        self,
        episode_id: str,
        *,
        commitment: str,
        amount: int,
        key: str | None = None,
    ) -> Challenge:
        """Commit to evidence, which stays with whoever has the nonce, and so does its direction."""
        body = {"commitment": commitment, "amount": amount}
        return _read(Challenge, self._post(f"/episodes/{_part(episode_id)}/challenges", body, key))

    def reveal(
        self,
        episode_id: str,
        challenge: int,
        *,
        nonce: bytes,
        bundle_sha256: str,
        direction: str,
        bundle: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Challenge:
        """Show what a commitment hid; `bundle` comes along unless the server has it."""
        body = {
            "challenge": challenge,
            "nonce": nonce.hex(),
            "bundle_sha256": bundle_sha256,
            "direction": Direction(direction).value,
            "bundle": None if bundle is None else dict(bundle),
        }
        return _read(Challenge, self._post(f"/episodes/{_part(episode_id)}/reveals", body, key))

    def dispute(
        self, episode_id: str, ground: str, *, bond: int, key: str | None = None
    ) -> Dispute:
        """Put a bond against the result."""
        body = {"ground": Ground(ground).value, "bond": bond}
        return _read(Dispute, self._post(f"/episodes/{_part(episode_id)}/disputes", body, key))

    def propose(
        self,
        claim: str,
        *,
        key: str | None = None,
        wait_s: float = _WAIT_S,
        observe: Callable[[JobEvent], None] | None = None,
        **terms: Any,
    ) -> Episode:
        """Open an episode; for operators. Terms are those of `POST /episodes`.

        It is measured first: see `move`.
        """
        begun = self._post("/episodes", {"claim": claim, **terms}, key)
        return self._outcome(begun, wait_s, observe)

    def move(
        self,
        episode_id: str,
        move: Literal["open", "begin", "freeze", "judge", "measure", "rule", "settle"],
        *,
        key: str | None = None,
        wait_s: float = _WAIT_S,
        observe: Callable[[JobEvent], None] | None = None,
        **options: Any,
    ) -> Episode:
        """Take an episode's next step; for operators.

        Judging, measuring and ruling take a while: this waits for `wait_s` seconds at most, and
        tells `observe` how far it is. Called again with the same key, it goes on waiting.
        """
        begun = self._post(f"/episodes/{_part(episode_id)}/{move}", options or None, key)
        return self._outcome(begun, wait_s, observe)

    def transfers(
        self, *, account: str | None = None, episode: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """List transfers of the ledger, the newest first."""
        return self._pages("/ledger/transfers", account=account, episode=episode)

    def balances(self, *, person: str | None = None) -> Iterator[dict[str, Any]]:
        """List accounts and what they hold."""
        return self._pages("/ledger/balances", person=person)

    def verify_ledger(self, *, episode: str | None = None) -> dict[str, Any]:
        """Have all chains read from their beginning, or an episode's alone."""
        return self._get("/ledger/verify", episode=episode)

    def leaderboard(self) -> list[Standing]:
        """List everybody's standing."""
        return list(self._list(Standing, "/leaderboard"))

    def credit(
        self,
        claim: str,
        *,
        model: str | None = None,
        lens: str | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Claim the credits of a finding; a claim is credited once, to whoever asks first."""
        body = {"claim": claim, "model": model, "lens": lens}
        found: dict[str, Any] = self._post("/exploration/credits", body, key)
        return found

    def tokens(self) -> Iterator[dict[str, Any]]:
        """List one's own tokens, without their secrets."""
        return self._pages("/people/me/tokens")

    def revoke(self, token_id: str, *, key: str | None = None) -> dict[str, Any]:
        """Make a token worthless, such as the one that this client has."""
        found: dict[str, Any] = self._post(f"/tokens/{_part(token_id)}/revoke", None, key)
        return found

    def accounts(self) -> Iterator[dict[str, Any]]:
        """List all accounts with what they have used; for operators."""
        return self._pages("/accounts")

    def export(
        self,
        table: Literal["runs", "executions", "samples", "transfers"],
        path: str | Path,
        *,
        only: str | None = None,
    ) -> int:
        """Write a table to a .jsonl or .parquet file; returns how many bytes it has."""
        target = Path(path)
        pieces = self._read_pieces(f"/export/{table}.{format_of(target)}", {"only": only})
        return write_export(target, pieces)

    def _outcome(
        self, begun: Mapping[str, Any], wait_s: float, observe: Callable[[JobEvent], None] | None
    ) -> Episode:
        """Read the episode after a move: at once, or when what the move began has ended."""
        if not str(begun.get("href", "")).startswith(f"{PREFIX}/jobs/"):
            return _read(Episode, begun)
        for event in self.follow(begun["id"], wait_s=wait_s):
            if observe is not None:
                observe(event)
        job = self.job(begun["id"])
        if job.state == "done":
            assert job.episode is not None, "what is done has an episode"
            return self.episode(job.episode)
        if job.error is None or job.error_kind is None:
            raise errors.ConflictError(
                f"`{job.id}` was {job.state}; what it hadn't decided is open"
            )
        kind = job.error_kind.removesuffix("Error")
        raise error_of({"type": f"{PROBLEM}{kind}", "detail": job.error}, 500)

    def _get(self, path: str, **query: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._send("GET", path, query=query))
        return found

    def _post(self, path: str, body: Mapping[str, Any] | None, key: str | None) -> Any:
        # One key for all tries: the server does it once, however often it hears of it.
        return json.loads(self._send("POST", path, body=body, key=key or uuid.uuid4().hex))

    def _list(self, kind: type[T], path: str, **query: Any) -> Iterator[T]:
        return (_read(kind, item) for item in self._pages(path, **query))

    def _pages(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        while True:
            page = self._get(path, **query, cursor=cursor)
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return


def _request(
    claims: str | Sequence[str], models: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    given = [claims] if isinstance(claims, str) else list(claims)
    return {"claims": given, "models": list(models), **options}


def _part(name: str) -> str:
    return quote(name, safe="")


def _read(kind: type[T], values: Mapping[str, Any]) -> T:
    """Read a record of a kind; a newer server may say more than this client knows."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    known = {name: values[name] for name in names if name in values}
    try:
        record: T = make_adapter(kind).validate_json(json.dumps(known))  # type: ignore[arg-type]
    except ValidationError as exc:
        problem = explain(exc.errors(include_url=False)[0])
        raise errors.RecordError(
            f"the server's {kind.__name__.lower()} can't be read: {problem}"
        ) from exc
    return record
