"""What live services share: a client that asks, an end to it, and a key from the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from heretix.evidence.search.client import DEFAULT_TIMEOUT_S, Retry, ServiceClient, key_from
from heretix.providers.http import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KeyedService", "Service"]


class Service:
    """A service that is asked through a client of its own."""

    name: ClassVar[str]

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class KeyedService(Service):
    """A service with one known address and a key, which goes along in a header."""

    base_url: ClassVar[str]
    key_variable: ClassVar[str]
    key_header: ClassVar[str]
    key_scheme: ClassVar[str] = ""
    """What stands before the key in its header."""
    min_interval_s: ClassVar[float]
    """Between two requests, unless told otherwise."""

    def __init__(
        self,
        key: str,
        *,
        base_url: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        min_interval_s: float | None = None,
        retry: Retry | None = None,
    ) -> None:
        target = Target(
            provider=self.name,
            base_url=base_url or self.base_url,
            key=key,
            key_variable=self.key_variable,
            timeout_s=timeout_s,
        )
        super().__init__(
            ServiceClient(
                target,
                {self.key_header: f"{self.key_scheme}{key}"},
                min_interval_s=self.min_interval_s if min_interval_s is None else min_interval_s,
                retry=retry,
            )
        )

    @classmethod
    def from_env(cls, env: Mapping[str, str], **options: Any) -> Self:
        """With the key that the environment holds."""
        return cls(key_from(env, cls.key_variable, cls.name), **options)
