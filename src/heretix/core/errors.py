"""Errors that Heretix raises on purpose.

    HeretixError                     exit code
    ├── UsageError                   2   something the user can put right
    │   ├── ConfigError                  a configuration key or value
    │   ├── ClaimError                   a claim that can't be measured as it stands
    │   ├── BankError                    a prompt bank
    │   ├── PolicyError                  a source policy
    │   ├── UnreadableError              a document that gives no text
    │   ├── ModelError                   a model id, or a model file
    │   │   └── MissingKeyError          a provider without its key
    │   ├── MissingPartError             an optional part that isn't installed
    │   ├── PluginError                  a plug-in that can't be loaded, with `reason`
    │   ├── RecordError                  a record or run that can't be found or read
    │   ├── RefusedError                 a move that the economy's rules refuse, with `status`
    │   ├── AccountError                 a name, password, role or quota that can't be taken
    │   ├── AccessError                  who asks may not do that
    │   │   └── SignInError              a password, session or token that doesn't fit
    │   ├── ConflictError                what is asked doesn't fit what is there by now
    │   ├── QuotaError                   more than a person may use
    │   └── TooManyRequestsError         too much at a time, with `retry_after_s`
    ├── NoEstimateError              1   measured, but too little came back to say anything
    ├── InsufficientEvidenceError    1   too few documents to measure a belief with
    ├── BudgetReachedError           1   stopped at the budget; what was answered is stored
    ├── BatchPendingError            1   samples are on their way in a batch, to be collected
    ├── ProviderError                3   a call that failed
    │   ├── RetryableError               worth another try
    │   │   ├── RateLimitedError         429, with `retry_after_s` where the provider said
    │   │   ├── ServerError              5xx and its kin
    │   │   ├── CallTimeoutError         no answer in time
    │   │   └── ConnectionFailedError    no connection, or one that broke
    │   │       └── UnreachedError       none could be made, so nothing was sent
    │   │           └── ServerAbsentError    nothing listens at an address of this machine
    │   ├── RejectedError                4xx: the same call would fail again
    │   ├── ProviderDownError            it only fails; the run stopped and can be resumed
    │   └── UnconfirmedError             a batch may or may not have been taken
    ├── StoppedError               130   it was asked to stop; what was answered is stored
    ├── ClusterError                 3   a cluster that can't be reached, or that failed
    └── StoreError                   3   the database
        ├── StoreAwayError               it can't be reached, and may come back
        │   └── StoreBusyError               locked by another process for too long
        ├── StoreFullError               no space left
        └── StoreReadOnlyError       2   it can be read, and this has to write

Messages name their subject in backticks, the rule, the value and the remedy.
All of these survive pickling, so that they can cross a process boundary.
"""

from __future__ import annotations

from typing import Any, ClassVar


class HeretixError(Exception):
    """Base of the tree; `exit_code` is what the command line ends with."""

    exit_code: ClassVar[int] = 1


class UsageError(HeretixError):
    """The user can put this right; nothing was started or written."""

    exit_code: ClassVar[int] = 2


class ConfigError(UsageError):
    """A configuration key or value is unknown, missing or out of range."""


class ClaimError(UsageError):
    """The claim is empty or otherwise can't be measured."""


class BankError(UsageError):
    """A prompt bank is malformed, or two banks share a version."""


class PolicyError(UsageError):
    """A source policy is malformed, or a list in it isn't the one that was pinned."""

    def __init__(self, message: str, *, problems: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems
        """Everything that is wrong with it, each with its line."""


class UnreadableError(UsageError):
    """A document can't be read as text, within the limits."""


class ModelError(UsageError):
    """A model id names no provider, or its file is missing or damaged."""


class MissingKeyError(ModelError):
    """The provider needs a key that the environment doesn't have."""


class MissingPartError(UsageError):
    """An optional part of Heretix that this needs isn't installed; the message says how to."""


class PluginError(UsageError):
    """A part that another package offers can't be loaded; everything else works."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        """Error, without the remedy."""


class RecordError(UsageError):
    """A record, run or execution can't be found, read or understood."""


class AccountError(UsageError):
    """A name, password, role or quota can't be taken as it was given."""


class AccessError(UsageError):
    """The person who asks may not do that."""


class SignInError(AccessError):
    """The visitor is unknown: the name and password, the session or the token doesn't fit."""


class ConflictError(UsageError):
    """A request that doesn't fit what is there by now; look again before asking again."""


class QuotaError(UsageError):
    """The request is for more than the person may use; nothing was begun."""


class TooManyRequestsError(UsageError):
    """Too much was asked in a short time."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """Seconds after which it may be asked again."""


class RefusedError(UsageError):
    """The rules of the economy refuse a move, or what it names doesn't exist; nothing changed."""

    def __init__(self, message: str, *, status: str = "refused", reason: Any = None) -> None:
        super().__init__(message)
        self.status = status
        """The reason, as the rules enumerate it: `insufficient_funds`, `wrong_state`, …"""
        self.reason = reason
        """Code and parameters (`economy.ledger.Reason`) that the message was made from, if any."""


class NoEstimateError(HeretixError):
    """Too few compliant samples came back; the samples are kept."""

    def __init__(self, message: str, *, code: str = "", **params: Any) -> None:
        super().__init__(message)
        self.code, self.params = code, params
        """The reason, as data: records keep these and not the message."""


class InsufficientEvidenceError(HeretixError):
    """Too few items are left to measure a belief with; there is no number, and no stand-in."""

    def __init__(self, message: str, *, bundle: Any = None) -> None:
        super().__init__(message)
        self.bundle = bundle
        """Everything there is, with the reason why the rest was dropped."""


class BudgetReachedError(HeretixError):
    """The budget is spent; what was answered until then is stored."""


class BatchPendingError(HeretixError):
    """A batch that was submitted before brings what is missing; asking again would pay twice."""


class StoppedError(HeretixError):
    """A run was asked to stop: nothing more is called for, and what was answered is stored."""

    exit_code: ClassVar[int] = 130


class ProviderError(HeretixError):
    """A call to a provider failed."""

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status, where there was one."""


class RetryableError(ProviderError):
    """The same call may succeed later."""


class RateLimitedError(RetryableError):
    """The provider asked for patience."""

    def __init__(
        self, message: str, *, status: int | None = 429, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, status=status)
        self.retry_after_s = retry_after_s
        """Time that the provider said to wait, where it did."""


class ServerError(RetryableError):
    """The provider failed on its side."""


class CallTimeoutError(RetryableError):
    """No answer came in time."""


class ConnectionFailedError(RetryableError):
    """No connection could be made, or it broke."""


class UnreachedError(ConnectionFailedError):
    """No connection could be made, so nothing was sent."""


class ServerAbsentError(UnreachedError):
    """An address of this machine at which nothing listens."""


class RejectedError(ProviderError):
    """The provider refused the request itself; a retry would be refused again."""


class ProviderDownError(ProviderError):
    """The provider did nothing but fail, so the run stopped; what was answered is stored."""


class UnconfirmedError(ProviderError):
    """A submission ended without saying whether the provider took it. `status` is None when no
    answer came at all."""


class ClusterError(HeretixError):
    """The cluster that was to measure can't be reached, or failed; what was answered is stored."""

    exit_code: ClassVar[int] = 3


class StoreError(HeretixError):
    """The database refused or failed."""

    exit_code: ClassVar[int] = 3


class StoreAwayError(StoreError):
    """The database can't be reached, or broke the connection: it may come back."""


class StoreBusyError(StoreAwayError):
    """Another process held the database for too long."""


class StoreFullError(StoreError):
    """The disk or the database has no space left."""


class StoreReadOnlyError(StoreError):
    """The database can be read where it is, but not written to; nothing was."""

    exit_code: ClassVar[int] = 2


__all__ = [
    name
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, HeretixError)
]
