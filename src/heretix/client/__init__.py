"""A client of a Heretix server: what `/api/v1` offers, as methods with types."""

from __future__ import annotations

from heretix.client.client import Client, Job, JobEvent, Quote, Verification

__all__ = ["Client", "Job", "JobEvent", "Quote", "Verification"]
