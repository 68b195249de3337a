"""The feed: what watchers of jobs see, and what they cost."""

import asyncio

from jobs_support import request
from sqlalchemy import event

from faultserver import answer, silence
from heretix.accounts import LOCAL
from heretix.core.settings import Settings
from heretix.jobs import Feed, Jobs, JobState, Worker


async def followed(feed, job_id, *, after=0):
    """Everything that a watcher sees of a job."""
    return [news async for news in feed.follow(job_id, after=after)]


async def test_a_watcher_sees_the_job_through(store, jobs):
    """Its numbers grow, and the last news is its end."""
    job = jobs.submit(LOCAL, request())
    feed = Feed(store)
    watching = asyncio.create_task(followed(feed, job.id))
    await Worker(store, Settings()).run_until_idle()
    news = await watching
    assert [item.seq for item in news] == sorted({item.seq for item in news})
    assert news[-1].state is JobState.DONE
    assert news[-1].progress.done == 8
    assert not any(item.ended for item in news[:-1])
    assert news[-1].as_dict()["progress"]["runs_done"] == 1
    await feed.aclose()


async def test_a_watcher_that_comes_back_sees_what_it_missed(store, jobs):
    """Nothing that it has seen already; and the end at once, if that is all there is."""
    job = jobs.submit(LOCAL, request())
    await Worker(store, Settings()).run_until_idle()
    feed = Feed(store)
    (last,) = await followed(feed, job.id)
    assert last.ended
    assert await followed(feed, job.id, after=last.seq) == []
    assert await followed(feed, job.id, after=last.seq - 1) == [last]


async def test_many_watchers_cost_one_reader(store, jobs):
    """Two hundred streams ask the store no more often than one does."""
    ids = [jobs.submit(LOCAL, request(f"claim {n}")).id for n in range(4)]
    # It asks when somebody begins to watch, and by itself not before this test is over.
    feed = Feed(store, poll_s=3600)
    asked = []
    event.listen(
        store._engine,
        "before_cursor_execute",
        lambda *args: asked.append(1) if args[2].startswith("SELECT") else None,
    )
    streams = [feed.follow(ids[n % 4]) for n in range(200)]
    seen = await asyncio.gather(*(anext(stream) for stream in streams))
    assert {news.state for news in seen} == {JobState.QUEUED}
    assert len(asked) == 1
    for job_id in ids:
        await asyncio.to_thread(jobs.cancel, job_id, by=LOCAL)
    asked.clear()
    streams.append(feed.follow(ids[0], after=seen[0].seq))
    seen = await asyncio.gather(*(anext(stream) for stream in streams))
    assert {news.state for news in seen} == {JobState.CANCELLED}
    assert len(asked) == 1
    assert await asyncio.gather(*(anext(stream, None) for stream in streams)) == [None] * 201
    assert feed._watchers == {}
    await feed.aclose()


async def test_a_job_that_is_not_there_ends_the_stream(store, jobs):
    """Whether it never was or is deleted while somebody watches."""
    feed = Feed(store, poll_s=0.01)
    assert await followed(feed, "job-0") == []
    job = jobs.submit(LOCAL, request())
    stream = feed.follow(job.id)
    assert (await anext(stream)).state is JobState.QUEUED
    await asyncio.to_thread(jobs.cancel, job.id, by=LOCAL)
    assert (await anext(stream)).ended
    await stream.aclose()
    await asyncio.to_thread(jobs.delete, job.id, by=LOCAL)
    assert await followed(feed, job.id) == []


async def test_closing_the_feed_ends_all_streams(store, jobs):
    """A server that stops leaves nobody waiting."""
    job = jobs.submit(LOCAL, request())
    feed = Feed(store)
    watching = asyncio.create_task(followed(feed, job.id))
    async for _ in feed.follow(job.id):
        break
    await feed.aclose()
    assert len(await watching) == 1


async def test_progress_is_told_while_a_job_runs(store, server, live):
    """With what is done, what is in flight and what it cost, before it ends."""
    server.script(answer(), answer())
    server.always(silence())
    jobs = Jobs(store, live)
    job = jobs.submit(LOCAL, request(models=("openai-compatible:m",)))
    worker = Worker(store, live)
    task = asyncio.create_task(worker.run())
    feed = Feed(store)
    async for news in feed.follow(job.id):
        if news.progress.done == 2 and news.progress.in_flight:
            break
    assert (news.state, news.progress.phase, news.progress.total) == (
        JobState.RUNNING,
        "measuring",
        8,
    )
    assert news.progress.spent_usd > 0
    worker.stop(drop=True)
    await task
    await feed.aclose()
