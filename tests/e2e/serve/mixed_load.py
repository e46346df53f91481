#!/usr/bin/env python3
"""Everything at once against one server: streams, whole answers, cancels, resets, contexts, MRI
calls, an experiment with replay, reloads, scrapes. Then nothing runs, nothing is lost, and the
server ends well. Also for a server that is built with a sanitizer: what it reports fails.

Usage: mixed_load.py PROGRAM SECONDS [MODEL]
"""

import collections
import contextlib
import json
import os
import random
import re
import signal
import socket
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import CLASSES, FAKE, KEYS, LIGHT, Server, merged

CHAT, COMPLETIONS = '/v1/chat/completions', '/v1/completions'
N_THREADS = 12
WORDS = 'one two three four five six seven eight nine ten'.split()


class Load:
    """One client thread's random actions; each may fail only as `expected` says."""

    def __init__(self, server, number, counts, problems):
        self.server, self.random = server, random.Random(number)
        self.counts, self.problems = counts, problems
        self.key = ('sk-a', 'sk-b', 'sk-vip', 'sk-admin')[number % 4]

    def run(self, end):
        actions = (self.chat, self.chat, self.stream, self.stream, self.completion, self.cancel,
                   self.reset, self.context, self.mri, self.look, self.bad, self.schema)
        while time.monotonic() < end:
            action = self.random.choice(actions)
            try:
                action()
                self.counts[action.__name__] += 1
            except Exception as e:  # each is a finding; the others go on
                self.problems.append(f'{action.__name__}: {type(e).__name__}: {e}')

    def text(self, n_max=200):
        return ' '.join(self.random.choices(WORDS, k=self.random.randrange(1, n_max)))

    def body(self, **more):
        return {'messages': [{'role': 'system', 'content': self.random.choice(WORDS) * 40},
                             {'role': 'user', 'content': self.text()}],
                'max_tokens': self.random.randrange(1, 30), **more}

    def request(self, method, path, body=None, expected=(200,)):
        headers = {'X-Conversation-Id': f'c{self.random.randrange(50)}'}
        status, _, answer = self.server.request(method, path, body, self.key, headers, timeout=240)
        if status == 429:
            self.counts['429'] += 1
            time.sleep(0.05)
        elif status not in expected:
            raise AssertionError(f'{method} {path}: {status} {str(answer)[:300]}')
        return status, answer

    def chat(self):
        self.request('POST', CHAT, self.body(n=self.random.choice((1, 1, 1, 3)), logprobs=True,
                                             top_logprobs=2, return_timings=True))

    def completion(self):
        self.request('POST', COMPLETIONS, {'prompt': [self.text(), self.text()], 'max_tokens': 5,
                                           'echo': True, 'logprobs': 1, 'best_of': 2})

    def schema(self):
        schema = {'type': 'object', 'properties': {'a': {'type': 'boolean'}}, 'required': ['a']}
        status, answer = self.request('POST', CHAT, self.body(max_tokens=60, json_schema=schema),
                                      (200, 501))  # 501: the fake runtime has no grammars
        choice = answer['choices'][0] if status == 200 else {'finish_reason': 'length'}
        if choice['finish_reason'] == 'stop':
            json.loads(choice['message']['content'])

    def events(self, body):
        try:
            yield from self.server.events(CHAT, body, self.key)
        except AssertionError as e:
            if not str(e).startswith('429'):
                raise
            self.counts['429'] += 1

    def stream(self):
        events = list(self.events(self.body(stream=True, return_progress=True)))
        if events and events[-1] != '[DONE]':
            raise AssertionError(f'a stream ends with {events[-1][:200]}')
        if any('"error"' in e for e in events):
            raise AssertionError(f'a stream has failed: {events[-2][:300]}')

    def cancel(self):
        for _ in zip(range(3), self.events(self.body(stream=True, max_tokens=500))):
            pass

    def reset(self):
        data = json.dumps(self.body(stream=self.random.random() < 0.5, max_tokens=500)).encode()
        with socket.create_connection(('127.0.0.1', self.server.port), timeout=60) as connection:
            connection.sendall((f'POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n'
                                f'Authorization: Bearer {self.key}\r\n'
                                'Content-Type: application/json\r\n'
                                f'Content-Length: {len(data)}\r\n\r\n').encode() + data)
            time.sleep(self.random.random() * 0.05)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))

    def context(self):
        status, made = self.request('POST', '/v1/contexts', {'text': self.text(300)}, (200, 409))
        if status != 200:
            return
        for _ in range(self.random.randrange(3)):
            self.request('POST', CHAT, self.body(context=made['id']))
        self.request('GET', '/v1/contexts')
        self.request('DELETE', f'/v1/contexts/{made["id"]}')

    def mri(self):
        status, made = self.request('POST', '/mri/init_context', {'tokens': [65] * 100})
        if status != 200:
            return
        ctx = made['ctx']
        self.request('POST', '/mri/forward_step', {'seqs': [{'ctx': ctx, 'tokens': [66]}]})
        self.request('POST', '/mri/evict_kv', {'ctx': ctx, 'ranges': [{'first': 32, 'count': 32}]})
        self.request('POST', '/mri/get_kv_summary', {'ctx': ctx})
        self.request('DELETE', f'/mri/contexts/{ctx}')

    def look(self):
        path = self.random.choice(('/metrics', '/health', '/livez', '/v1/models', '/readyz',
                                   '/openapi.json'))
        self.request('GET', path)
        if self.key == 'sk-admin':
            self.request('GET', '/debug/attention')
            self.request('GET', '/admin/experiments')

    def bad(self):
        self.request('POST', CHAT, '{"messages":' + '[' * self.random.randrange(200), (400, 415))
        self.request('POST', CHAT, self.body(top_p=7), (400,))
        self.request('POST', COMPLETIONS, {'prompt': 'x' * 60_000}, (400,))
        self.request('GET', '/v1/contexts/none', None, (404,))


def tables(log, weights, model):
    return merged(LIGHT if model else FAKE, CLASSES, {
        'server': {'experiment_log_path': log, 'ping_interval_s': 1},
        'stack.main': {'concurrency': 6, 'concurrency_max': 12, 'queue_max': 16,
                       'peak_queue_percent': 50},
        'stack.other': {'profile': 'other.toml'},
        'experiment.new': {'class': 'standard', 'salt': '0123456789abcdef0123',
                           'arms': [f'main:{100 - weights}', f'other:{weights}'],
                           'shadow_percent': 30, 'kld_max': 100, 'top1_min': 0}})


def disturb(server, model, log, end):
    """Reloads with other weights, and with a broken file."""
    for i in range(10**9):
        time.sleep(0.5)
        if time.monotonic() > end:
            break
        if i % 5 == 4:
            server.write('profile.toml', 'broken [')
        else:
            server.write_profile(tables(log, 30 + i % 3 * 10, model))
        server.signal(signal.SIGHUP)


def wait_for_rest(server, problems):
    names = ('varve_lane_running_requests', 'varve_lane_waiting_requests')
    deadline = time.monotonic() + 60
    while True:
        left = {k: v for k, v in server.metrics('sk-admin').items() if k.startswith(names) and v}
        if not left:
            return
        if time.monotonic() > deadline:
            problems.append(f'left behind: {left}')
            return
        time.sleep(0.1)


def run(program, seconds, model):
    counts, problems = collections.Counter(), []
    with contextlib.ExitStack() as stack:
        log = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), 'log')
        fake = merged(FAKE, {'runtime': {'token_us': 50}})
        other = LIGHT if model else fake
        server = Server(program, tables(log, 40, model), KEYS, model,
                        profiles={'other.toml': other})
        stack.callback(server.stop)
        end = time.monotonic() + seconds
        threads = [threading.Thread(target=Load(server, i, counts, problems).run, args=(end,))
                   for i in range(N_THREADS)]
        threads.append(threading.Thread(target=disturb, args=(server, model, log, end)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for_rest(server, problems)
        status, _, answer = server.request('POST', CHAT, {
            'messages': [{'role': 'user', 'content': 'hello'}], 'max_tokens': 3}, 'sk-a')
        if status != 200:
            problems.append(f'afterwards: {status} {answer}')
        server.signal(signal.SIGTERM)
        code = server.wait(120)
        if code != 0:
            problems.append(f'exit code {code}')
        text = server.log()
        reports = re.findall('(?:WARNING|ERROR): [A-Z][a-z]+Sanitizer.*|runtime error.*', text)
        if reports:
            problems.append(f'{len(reports)} reports: {text[text.index(reports[0]):][:20000]}')
    print(dict(counts))
    return problems


if __name__ == '__main__':
    found = run(sys.argv[1], float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else '')
    for problem in found[:20]:
        print(problem)
    sys.exit(f'{len(found)} problems' if found else 0)
