"""A search whose hits come with their text."""

from heretix.evidence.demo import demo_documents
from heretix.evidence.search import Hit, narrow


class AcmeSearch:
    """Finds what shares a long word with the query."""

    name = "acme"

    @classmethod
    def from_env(cls, env, **options):
        """A key or an address would be read from `env`."""
        return cls()

    async def search(self, query, k, as_of=None, include=(), exclude=()):
        """At most `k` hits, best first; `narrow` applies the filters."""
        words = {word for word in query.lower().split() if len(word) > 4}
        hits = [
            Hit(
                url=document.url,
                title=document.title,
                snippet=document.text[:200],
                published=document.published,
                score=None,
                document=document,
            )
            for document in demo_documents()
            if words & set(document.text.lower().split())
        ]
        return narrow(hits, k=k, as_of=as_of, include=include, exclude=exclude)

    async def aclose(self):
        """Nothing is open."""
