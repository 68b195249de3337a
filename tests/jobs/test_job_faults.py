"""What a job says when the store fails under it."""

import pytest
from jobs_support import explorer, request, work

from heretix.accounts import LOCAL
from heretix.core.errors import StoreFullError
from heretix.jobs import JobState
from heretix.measurement import execution

PLACE = "/srv/heretix/secret.sqlite"


@pytest.mark.parametrize("owner", ["Ada", "local"])
def test_where_the_store_lies_is_told_to_nobody_who_isnt_there(
    jobs, store, owner, monkeypatch, caplog
):
    """The log says it, and the job to nobody: others may look at it later."""

    def full(*_, **__):
        raise StoreFullError(f"`{PLACE}` has no room left")

    job = jobs.submit(LOCAL if owner == "local" else explorer(store), request())
    monkeypatch.setattr(execution, "start_executions", full)
    work(store)
    ended = jobs.get(job.id, by=LOCAL)
    assert (ended.state, ended.error_kind) == (JobState.FAILED, "StoreFullError")
    assert ended.error is not None
    assert PLACE not in ended.error
    assert "the store couldn't be used" in ended.error
    assert PLACE in caplog.text
