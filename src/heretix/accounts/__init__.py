"""Accounts: people and roles, sessions and tokens, limits, and the audit log."""

from __future__ import annotations

from heretix.accounts.accounts import Passwords, People, check_password
from heretix.accounts.limits import RateLimiter, Replies, StoredReply
from heretix.accounts.person import LOCAL, Person, Quotas, Role, check_name
from heretix.accounts.sessions import IssuedToken, Session, Token

__all__ = [
    "LOCAL",
    "IssuedToken",
    "Passwords",
    "People",
    "Person",
    "Quotas",
    "RateLimiter",
    "Replies",
    "Role",
    "Session",
    "StoredReply",
    "Token",
    "check_name",
    "check_password",
]
