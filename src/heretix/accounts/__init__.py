"""People: who may do what, how they prove who they are, and what they did."""

from __future__ import annotations

from heretix.accounts.accounts import Passwords, People, check_password
from heretix.accounts.audit import Audit, AuditEntry
from heretix.accounts.limits import RateLimiter, Replies, StoredReply
from heretix.accounts.person import LOCAL, Person, Quotas, Role, check_name
from heretix.accounts.sessions import IssuedToken, Session, Sessions, Token, Tokens

__all__ = [
    "LOCAL",
    "Audit",
    "AuditEntry",
    "IssuedToken",
    "Passwords",
    "People",
    "Person",
    "Quotas",
    "RateLimiter",
    "Replies",
    "Role",
    "Session",
    "Sessions",
    "StoredReply",
    "Token",
    "Tokens",
    "check_name",
    "check_password",
]
