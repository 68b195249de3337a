"""Sources of documents: fetched, extracted, kept in a corpus, named by a user."""
