"""One module a migration: `upgrade` calls small functions that say what they do."""
