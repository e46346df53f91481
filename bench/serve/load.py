"""Clients that stream answers over HTTP and note when each token came. Standard library only."""

import asyncio
import dataclasses
import json
import random
import time
import urllib.parse


@dataclasses.dataclass
class Record:
    """One request as its client saw it. Times in s; gaps between tokens from the second on."""

    begun: float = 0.0  # time.monotonic()
    status: int = 0
    ttft: float | None = None
    gaps: list = dataclasses.field(default_factory=list)
    gap_times: list = dataclasses.field(default_factory=list)  # time.monotonic() of each gap's end
    total: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str = ''

    @property
    def ok(self):
        return self.status == 200 and not self.error and self.ttft is not None


class Target:
    """Where requests go: base URL, key, and fields added to each body."""

    def __init__(self, url, key='', extra=None):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port
        self.key, self.extra = key, extra or {}

    def with_key(self, key):
        return Target(f'http://{self.host}:{self.port}', key, self.extra)

    def encode(self, path, body):
        data = json.dumps({**body, **self.extra}).encode()
        head = [
            f'POST {path} HTTP/1.1',
            f'Host: {self.host}:{self.port}',
            'Content-Type: application/json',
            f'Content-Length: {len(data)}',
            'Connection: close',
        ]
        if self.key:
            head.append(f'Authorization: Bearer {self.key}')
        return '\r\n'.join(head).encode() + b'\r\n\r\n' + data


async def read_events(reader):
    """Yields the data of each server-sent event; chunk framing is skipped line by line."""
    while line := await reader.readline():
        if line.startswith(b'data: '):
            yield line[6:].strip()


def note_event(record, data, last):
    """Takes one event into the record; returns the time of the newest token."""
    event = json.loads(data)
    if 'error' in event:
        record.error = str(event['error'].get('message', event['error']))
        return last
    if usage := event.get('usage'):
        record.prompt_tokens = usage.get('prompt_tokens', 0)
        record.output_tokens = usage.get('completion_tokens', 0)
        record.cached_tokens = (usage.get('prompt_tokens_details') or {}).get('cached_tokens', 0)
    choice = (event.get('choices') or [{}])[0]
    delta = choice.get('delta', choice)
    if delta.get('content') is None and delta.get('text') is None:
        return last
    if choice.get('finish_reason') and not (delta.get('content') or delta.get('text')):
        return last
    now = time.monotonic()
    if record.ttft is None:
        record.ttft = now - record.begun
    else:
        record.gaps.append(now - last)
        record.gap_times.append(now)
    return now


async def stream(target, path, body, timeout_s=600):
    """Sends one streaming request and returns its Record, whatever the server does; a cancelled one
    returns what came so far."""
    record = Record(begun=time.monotonic())
    writer = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(target.host, target.port, limit=1 << 22)
            body = {**body, 'stream': True, 'stream_options': {'include_usage': True}}
            writer.write(target.encode(path, body))
            await writer.drain()
            record.status = int((await reader.readline()).split()[1])
            last = record.begun
            if record.status != 200:
                record.error = (await reader.read(4096)).decode(errors='replace')[-300:]
            else:
                async for data in read_events(reader):
                    if data == b'[DONE]':
                        break
                    last = note_event(record, data, last)
    except asyncio.CancelledError:
        record.error = 'cancelled by the client'
    except (
        OSError,
        ValueError,
        IndexError,
        asyncio.TimeoutError,
        asyncio.IncompleteReadError,
    ) as e:
        record.error = record.error or f'{type(e).__name__}: {e}'
    finally:
        if writer is not None:
            writer.close()
    record.total = time.monotonic() - record.begun
    return record


async def closed_loop(target, path, bodies, clients, seconds):
    """So many clients, each sending its next request when the last one ended, for so long."""
    end, records = time.monotonic() + seconds, []

    async def client():
        while time.monotonic() < end:
            records.append(await stream(target, path, next(bodies)))

    await asyncio.gather(*(client() for _ in range(clients)))
    return records


async def open_loop(target, path, bodies, per_second, seconds, seed=1):
    """Requests at the times of a Poisson process, whatever the server does meanwhile."""
    draw, tasks, end = random.Random(seed), [], time.monotonic() + seconds
    while True:
        await asyncio.sleep(draw.expovariate(per_second))
        if time.monotonic() >= end:
            return list(await asyncio.gather(*tasks))
        tasks.append(asyncio.create_task(stream(target, path, next(bodies))))


def quantile(values, q):
    """The q-quantile by linear interpolation; NaN of nothing."""
    if not values:
        return float('nan')
    values = sorted(values)
    at = q * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def summary(records, seconds):
    """Rates and quantiles of the records that came back whole."""
    good = [r for r in records if r.ok]
    gaps = [gap for r in good for gap in r.gaps]
    tokens = sum(r.output_tokens for r in good)
    return {
        'requests': len(records),
        'failed': len(records) - len(good),
        'first_error': next((r.error or f'status {r.status}' for r in records if not r.ok), ''),
        'output_tokens_per_s': tokens / seconds,
        'requests_per_s': len(good) / seconds,
        'ttft_ms': {f'p{p}': 1e3 * quantile([r.ttft for r in good], p / 100) for p in (50, 95, 99)},
        'gap_ms': {f'p{p}': 1e3 * quantile(gaps, p / 100) for p in (50, 95, 99)},
    }
