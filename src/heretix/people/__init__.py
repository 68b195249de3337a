"""People: who may do what, how they prove who they are, and what they did."""

from __future__ import annotations

from heretix.people.audit import Audit, AuditEntry
from heretix.people.password import Passwords, check_password
from heretix.people.people import People
from heretix.people.person import LOCAL, Person, Quotas, check_name
from heretix.people.ratelimit import RateLimiter
from heretix.people.replies import Replies, StoredReply
from heretix.people.role import Role
from heretix.people.session import Session, Sessions
from heretix.people.token import IssuedToken, Token, Tokens

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
